package main

import (
	"errors"
	"strings"
	"testing"
)

// secret is the password in these tests. A part of it appears if a broken connection string is cut
// at the wrong place.
var secret = []string{"hunt", "er2", "fish"}

func leaks(text string) bool {
	for _, part := range secret {
		if strings.Contains(text, part) {
			return true
		}
	}
	return false
}

// broken are connection strings that a person may write by mistake.
var broken = []string{
	"postgres://me:hunt@er2@127.0.0.1:1/db",
	"postgres://me:hunt/er2@127.0.0.1:1/db",
	"postgres://me:1/er2@127.0.0.1:1/db",
	"postgres://me:1/hunt?er2=fish@127.0.0.1:1/db",
	"postgres://me:hunt?er2@fish@127.0.0.1:1/db",
	"postgres://me:hunt%er2@127.0.0.1:1/db",
	"postgres://me:hunter2 fish@127.0.0.1:1 /db",
	"postgres://me:hunter2:fish",
	"postgres://127.0.0.1:1/db?sslmode=hunter2",
	"postgres://127.0.0.1:1?password=hunt@er2",
	"postgres://127.0.0.1?password=hunt@er2",
	"postgres://me:hunter2@127.0.0.1:1/db?sslmode=nonsense",
	"postgres://me:hunter2@127.0.0.1:port/db",
	"postgres://me:hunter2@127.0.0.1:1/db?hunt er2=1",
	"postgresql://me:hunt@er2@127.0.0.1:1/db",
	"postgres:/me:hunter2@127.0.0.1:1/db",
	"mysql://me:hunter2@127.0.0.1:1/db",
	"mysql://me:hunt=er2@127.0.0.1:1/db",
	"me:hunter2@127.0.0.1:1/db",
	"hunter2",
	"host=127.0.0.1 port=1 password=hunt er2",
	"host=127.0.0.1 port=1 password=hunt er2 dbname=db",
	"host=127.0.0.1 port=1 password='hunter2",
	"host=127.0.0.1 port=1 password='hunt'er2",
	"host=hunt@er2 password=hunter2",
	"host=127.0.0.1 port=hunter2",
	"host=127.0.0.1 password=hunter2 sslmode=fish",
	"postgres://me:hunter2@127.0.0.1:1/db\x00",
}

func TestBrokenConnStrings(t *testing.T) {
	t.Parallel()
	for _, text := range broken {
		_, err := database{text, "$DATABASE_URL"}.config()
		if !errors.Is(err, errConnString) || !strings.Contains(err.Error(), "in $DATABASE_URL: ") {
			t.Errorf("%q: %v", text, err)
		}
		if err != nil && leaks(err.Error()) {
			t.Errorf("%q: the error shows a part of the password: %v", text, err)
		}
	}
}

func TestGoodConnStrings(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"postgres://me:hunt%40er2@127.0.0.1:1/db",
		"postgres://me:hunt#er:2@[::1]:1/db",
		"postgresql://me@one.example,two-2.example:5433/db?target_session_attrs=read-write&application_name=me%40here",
		"postgres:///db?host=/var/run/postgresql",
		"postgres://bücher.example/db?pool_max_conns=3",
		"host=127.0.0.1 port=1 password='hunt er2' dbname=db app.user=x",
		"host=/tmp,@abstract password=hunter2",
	} {
		if _, err := (database{text, "--database-url"}).config(); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}
