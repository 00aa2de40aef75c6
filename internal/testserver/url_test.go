package testserver_test

import (
	"strings"
	"testing"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/testserver"
)

func TestNamedServerIsUsedAsItIs(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	server := pgtest.Server(t, testserver.Options{})
	a := s.start(roleUser, testserver.URLVariable+"="+server.URL())
	if a.Error != "" {
		t.Fatal(a.Error)
	}
	if got := a.Server; got.URL != server.URL() || got.Way != testserver.WayURL {
		t.Errorf("got %v", got)
	}
	if strings.Contains(a.Server.String(), server.URL()) {
		t.Error("the description shows the password")
	}
	a.leave()
	s.mustEmpty()
	if !reachable(server.URL()) {
		t.Error("the named server ended with the process that used it")
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
			a := s.start(roleUser, testserver.URLVariable+"="+url)
			if !strings.Contains(a.Error, testserver.URLVariable) {
				t.Errorf("got %+v, want an error that names %s", a.report, testserver.URLVariable)
			}
			if strings.Contains(a.Error, "top-secret") {
				t.Errorf("the error shows the password: %s", a.Error)
			}
		})
	}
}
