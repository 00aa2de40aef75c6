package testserver_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/testserver"
)

// fakeEngine is a Docker engine without any image, whose registry never answers.
func fakeEngine(t *testing.T) (host string) {
	t.Helper()
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Api-Version", "1.41")
		w.Header().Set("Content-Type", "application/json")
		switch {
		case strings.HasSuffix(r.URL.Path, "/_ping"):
			fmt.Fprint(w, "OK")
		case strings.HasSuffix(r.URL.Path, "/info"):
			fmt.Fprint(w, `{"OSType": "linux", "OperatingSystem": "none", "ServerVersion": "20"}`)
		case strings.HasSuffix(r.URL.Path, "/containers/json"):
			fmt.Fprint(w, "[]")
		case strings.HasSuffix(r.URL.Path, "/images/create"):
			<-r.Context().Done()
		default:
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"message": "no such thing"}`)
		}
	}))
	t.Cleanup(engine.Close)
	return "tcp://" + engine.Listener.Addr().String()
}

func TestSilentRegistryIsPassedOver(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	begin := time.Now()
	a := s.start(roleUser, "DOCKER_HOST="+fakeEngine(t), testserver.PatienceVariable+"=300ms")
	if a.word.Error != "" {
		t.Fatal(a.word.Error)
	}
	server := a.word.Server
	if server.Way != testserver.WayLocal || !strings.Contains(strings.Join(server.Passed, "\n"), "kept silent for 300ms") {
		t.Errorf("got %v after %q", server, server.Passed)
	}
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
	a.leave()
	s.mustEmpty(server.URL)
}

func TestNamedImageIsNotPassedOver(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a := s.start(roleUser, "DOCKER_HOST="+fakeEngine(t), testserver.PatienceVariable+"=300ms",
		testserver.ImageVariable+"=registry.invalid/postgres:17")
	for _, want := range []string{"registry.invalid/postgres:17", "kept silent", testserver.ImageVariable} {
		if !strings.Contains(a.word.Error, want) {
			t.Errorf("got %+v, want an error with %q", a.word, want)
		}
	}
	a.leave()
	s.mustEmpty()
}

func TestNoEngineIsPassedOver(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a := s.start(roleUser, "DOCKER_HOST=tcp://127.0.0.1:1")
	if a.word.Error != "" {
		t.Fatal(a.word.Error)
	}
	if a.word.Server.Way == testserver.WayDocker || len(a.word.Server.Passed) == 0 {
		t.Skipf("testcontainers-go found another engine than DOCKER_HOST: %v", a.word.Server)
	}
	a.leave()
	s.mustEmpty(a.word.Server.URL)
}

func TestEveryWayFails(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a := s.start(roleUser, "DOCKER_HOST="+fakeEngine(t), testserver.PatienceVariable+"=300ms",
		testserver.BinDirVariable+"="+s.dir, testserver.RepositoryVariable+"=http://127.0.0.1:1", "HOME="+s.dir)
	for _, want := range []string{
		"\n  docker: image " + testserver.DefaultImage, "\n  local: ", "\n  embedded: ",
		"Any one of these helps", testserver.URLVariable, "testdata/image/build.sh",
	} {
		if !strings.Contains(a.word.Error, want) {
			t.Errorf("the error doesn't tell %q:\n%s", want, a.word.Error)
		}
	}
	a.leave()
	s.mustEmpty()
}

// localImage returns an image that this machine has, or skips.
func localImage(t *testing.T) string {
	t.Helper()
	image := os.Getenv(testserver.ImageVariable)
	if image == "" {
		image = "pglock-postgres:15"
	}
	if _, err := docker(t, "version"); err != nil {
		t.Skipf("no Docker engine answers to %q here; start one, or get the rights to use it, to run this test", "docker version")
	}
	if _, err := docker(t, "image", "inspect", image); err != nil {
		t.Skipf("there is no image %s; build it with testdata/image/build.sh, or name another one in %s", image, testserver.ImageVariable)
	}
	return image
}

func docker(t *testing.T, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "docker", args...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("docker %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out)), err
}

// containersOf returns the containers of the stage's only supervisor.
func (s *stage) containersOf(supervisor string) string {
	s.t.Helper()
	out, err := docker(s.t, "ps", "-aq", "--filter", "label=pglock.testserver.supervisor="+supervisor)
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

func TestDocker(t *testing.T) {
	t.Parallel()
	image := localImage(t)
	s := newStage(t)
	first := s.start(roleOwner)
	env := []string{testserver.ImageVariable + "=" + image, owned(first)}
	a := s.start(roleUser, env...)
	if a.word.Error != "" {
		t.Fatal(a.word.Error)
	}
	if a.word.Server.Way != testserver.WayDocker {
		t.Errorf("got %v", a.word.Server)
	}
	if again := s.start(roleUser, env...); again.word.Server == nil || again.word.Server.URL != a.word.Server.URL {
		t.Errorf("one run has two servers: %+v", again.word)
	}
	supervisor := s.supervisor()
	ports, err := docker(t, "port", s.containersOf(supervisor.String()))
	remote := strings.HasPrefix(os.Getenv("DOCKER_HOST"), "tcp:")
	if err != nil || !remote && (!strings.Contains(ports, "127.0.0.1:") || strings.Contains(ports, "0.0.0.0")) {
		t.Errorf("the container listens on %q, %v", ports, err)
	}

	// A killed supervisor leaves its container. The next run removes it.
	killNow(t, supervisor)
	first.kill()
	next := s.start(roleOwner)
	s.user(next, owned(next))
	pgtest.Eventually(t, 20*time.Second, "the container is swept", func() bool { return s.containersOf(supervisor.String()) == "" })
	next.leave()
	s.mustEmpty(a.word.Server.URL)
}

func TestContainerEndsWithItsOwner(t *testing.T) {
	t.Parallel()
	image := localImage(t)
	s := newStage(t)
	owner := s.start(roleOwner)
	a := s.start(roleUser, testserver.ImageVariable+"="+image, owned(owner))
	if a.word.Error != "" {
		t.Fatal(a.word.Error)
	}
	supervisor := s.supervisor()
	a.leave()
	owner.kill()
	s.mustEmpty(a.word.Server.URL)
	if left := s.containersOf(supervisor.String()); left != "" {
		t.Errorf("container %s is left", left)
	}
}

// TestContainerThatFails is told what the container said.
func TestContainerThatFails(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("the engine there may run other containers than Linux's")
	}
	image := localImage(t)
	broken := image + "-broken"
	build := exec.Command("docker", "build", "-q", "-t", broken, "-")
	build.Env = append(os.Environ(), "DOCKER_BUILDKIT=0")
	build.Stdin = strings.NewReader("FROM " + image + "\nENTRYPOINT [\"/bin/sh\", \"-c\", \"echo it is broken; exit 3\"]\n")
	if out, err := build.CombinedOutput(); err != nil {
		t.Skipf("this engine can't build: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if _, err := docker(t, "rmi", "-f", broken); err != nil {
			t.Error(err)
		}
	})
	s := newStage(t)
	a := s.start(roleUser, testserver.ImageVariable+"="+broken)
	for _, want := range []string{"status 3", "it is broken"} {
		if !strings.Contains(a.word.Error, want) {
			t.Errorf("got %+v, want an error with %q", a.word, want)
		}
	}
	a.leave()
	s.mustEmpty()
}
