package main

import (
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
)

// TestUI serves the page to this machine, and ends on a signal.
func TestUI(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.held("account:17")
	p := c.start("ui", "--addr", "127.0.0.1:0")
	var address string
	pgtest.Eventually(t, "it listens", func() bool {
		address = strings.TrimSpace(read(t, p.stdout.Name()))
		return strings.HasPrefix(address, "http://")
	})
	get := func(path, host string) (status int, body string) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address+path, nil)
		locktest.OK(t, err)
		request.Host = host
		r, err := http.DefaultClient.Do(request)
		locktest.OK(t, err)
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		locktest.OK(t, err)
		return r.StatusCode, string(text)
	}
	if status, body := get("/", ""); status != 200 || !strings.Contains(body, "account:17") {
		t.Errorf("%d %s", status, body)
	}
	if status, body := get("/doctor", ""); status != 200 || !strings.Contains(body, "accepts writes") {
		t.Errorf("%d %s", status, body)
	}
	if status, _ := get("/", "evil.example"); status != 403 {
		t.Errorf("another host's name: %d", status)
	}
	locktest.OK(t, p.cmd.Process.Signal(syscall.SIGINT))
	p.wait()
	c.expect(statusUsage, "ui", "--access", "all")
	c.expect(statusUsage, "ui", "--addr", "nowhere")
}
