package testserver_test

import (
	"strings"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/testserver"
)

func TestNamedServerIsUsedAsItIs(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	server := pgtest.Server(t, testserver.Options{})
	a := s.start(roleUser, testserver.URLVariable+"="+server.URL())
	if a.word.Error != "" {
		t.Fatal(a.word.Error)
	}
	if got := a.word.Server; got.URL != server.URL() || got.Way != testserver.WayURL {
		t.Errorf("got %v", got)
	}
	if strings.Contains(a.word.Server.String(), server.URL()) {
		t.Error("the description shows the password")
	}
	if states := s.states(); len(states) != 0 {
		t.Errorf("there is a supervisor: %q", states)
	}
}

func TestNamedServerMustAnswer(t *testing.T) {
	t.Parallel()
	for name, url := range map[string]string{
		"nobody listens": "postgres://someone:top-secret@127.0.0.1:1/db",
		"no address":     "postgres://someone:top-secret@127.0.0.1:none/db",
		"keywords":       "host=127.0.0.1 port=1 user=someone password=top-secret",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			begin := time.Now()
			a := s.start(roleUser, testserver.URLVariable+"="+url)
			if took := time.Since(begin); took > 10*time.Second {
				t.Errorf("it took %v", took)
			}
			if !strings.Contains(a.word.Error, testserver.URLVariable) {
				t.Errorf("got %+v, want an error that names %s", a.word, testserver.URLVariable)
			}
			if strings.Contains(a.word.Error, "top-secret") {
				t.Errorf("the error shows the password: %s", a.word.Error)
			}
		})
	}
}
