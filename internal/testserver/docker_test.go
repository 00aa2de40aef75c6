package testserver_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
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
		case strings.HasSuffix(r.URL.Path, "/networks"):
			fmt.Fprint(w, `[{"Name": "bridge", "Id": "1", "Driver": "bridge"}]`)
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

func TestNamedImageIsNotPassedOver(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a := s.startRemote("DOCKER_HOST="+fakeEngine(t), testserver.PatienceVariable+"=300ms",
		testserver.ImageVariable+"=registry.invalid/postgres:17")
	for _, want := range []string{"registry.invalid/postgres:17", "kept silent", testserver.ImageVariable} {
		if !strings.Contains(a.Error, want) {
			t.Errorf("got %+v, want an error with %q", a.report, want)
		}
	}
	a.leave()
	s.mustEmpty()
}

// TestEveryWayFails has no programs, and a Docker engine whose registry never answers, or none.
func TestEveryWayFails(t *testing.T) {
	t.Parallel()
	for host, why := range map[string]string{
		fakeEngine(t):       "image " + testserver.DefaultImage + ": the registry kept silent for 300ms",
		"tcp://127.0.0.1:1": "", // testcontainers-go may find another engine, whose registry is out of reach
	} {
		s := newStage(t)
		a := s.startRemote(testserver.BinDirVariable+"="+s.dir, testserver.PatienceVariable+"=300ms", "DOCKER_HOST="+host)
		for _, want := range []string{
			"\n  local: ", "\n  docker: " + why, "Any one of these helps", testserver.URLVariable, "testdata/image/build.sh",
		} {
			if !strings.Contains(a.Error, want) {
				t.Errorf("the error does not contain %q:\n%s", want, a.Error)
			}
		}
		a.leave()
		s.mustEmpty()
	}
}

// localImage returns an image that this machine has. Without one, or without a Docker engine, the test is left out.
func localImage(t *testing.T) string {
	t.Helper()
	image := os.Getenv(testserver.ImageVariable)
	if image == "" {
		image = "pglock-postgres:15"
	}
	pgtest.NeedTool(t, "docker", func() error {
		if _, err := docker(t, "version"); err != nil {
			return fmt.Errorf("start a Docker engine, or get the rights to use it: %w", err)
		}
		if _, err := docker(t, "image", "inspect", image); err != nil {
			return fmt.Errorf("there is no image %s: testdata/image/build.sh builds it, or %s names another one", image, testserver.ImageVariable)
		}
		return nil
	})
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

// container returns the name of the stage's only container.
func (s *stage) container() string {
	s.t.Helper()
	files, err := filepath.Glob(filepath.Join(s.dir, testserver.HomePrefix+"*", "container"))
	if err != nil || len(files) != 1 {
		s.t.Fatalf("there are %d containers, %v", len(files), err)
	}
	name, err := os.ReadFile(files[0])
	if err != nil {
		s.t.Fatal(err)
	}
	return string(name)
}

func containerExists(t *testing.T, name string) bool {
	t.Helper()
	out, err := docker(t, "ps", "-aq", "--filter", "name="+name)
	if err != nil {
		t.Fatal(err)
	}
	return out != ""
}

func TestDocker(t *testing.T) {
	t.Parallel()
	image := localImage(t)
	s := newStage(t)
	a := s.startRemote(testserver.ImageVariable + "=" + image)
	if a.Error != "" {
		t.Fatal(a.Error)
	}
	if a.Server.Way != testserver.WayDocker {
		t.Errorf("got %v", a.Server)
	}
	if again := s.user(handed(t, a)); again.Server.URL != a.Server.URL {
		t.Errorf("one run has two servers: %+v", again.Server)
	}
	name := s.container()
	ports, err := docker(t, "port", name)
	remote := strings.HasPrefix(os.Getenv("DOCKER_HOST"), "tcp:")
	if err != nil || !remote && (!strings.Contains(ports, "127.0.0.1:") || strings.Contains(ports, "0.0.0.0")) {
		t.Errorf("the container listens on %q, %v", ports, err)
	}

	// A killed keeper leaves its container. The next process removes it.
	a.killKeepers(t)
	a.kill()
	if !containerExists(t, name) {
		t.Error("there is no leftover")
	}
	s.sweep(testserver.ServerVariable+"=docker", testserver.ImageVariable+"="+image)
	if containerExists(t, name) {
		t.Error("the container was not swept")
	}
	s.mustEmpty(a.Server.URL)
}

func TestContainerEndsWithItsProcess(t *testing.T) {
	t.Parallel()
	image := localImage(t)
	s := newStage(t)
	for _, end := range []func(*actor){(*actor).kill, (*actor).leave} {
		a := s.startRemote(testserver.ImageVariable + "=" + image)
		if a.Error != "" {
			t.Fatal(a.Error)
		}
		name := s.container()
		end(a)
		s.mustEmpty(a.Server.URL)
		if containerExists(t, name) {
			t.Errorf("container %s is left", name)
		}
	}
}

// TestContainerThatFails expects the container's exit status and output in the error.
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
	pgtest.NeedTool(t, "docker build", func() error {
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	t.Cleanup(func() {
		if _, err := docker(t, "rmi", "-f", broken); err != nil {
			t.Error(err)
		}
	})
	s := newStage(t)
	a := s.startRemote(testserver.ImageVariable + "=" + broken)
	for _, want := range []string{"status 3", "it is broken"} {
		if !strings.Contains(a.Error, want) {
			t.Errorf("got %+v, want an error with %q", a.report, want)
		}
	}
	a.leave()
	s.mustEmpty()
}
