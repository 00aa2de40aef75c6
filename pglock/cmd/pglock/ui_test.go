//go:build unix

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
	p, address := c.serves("--addr", "127.0.0.1:0")
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
	if status, body := get("/locks", ""); status != 200 || !strings.Contains(body, "account:17") {
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

// serves starts pglock ui, and returns its address.
func (c *cli) serves(flags ...string) (p *call, address string) {
	c.t.Helper()
	p = c.start(append([]string{"ui"}, flags...)...)
	pgtest.Eventually(c.t, "it listens", func() bool {
		address = strings.TrimSpace(read(c.t, p.stdout.Name()))
		return strings.HasPrefix(address, "http://")
	})
	return p, address
}

func fetch(t *testing.T, address string) (status int, body string) {
	t.Helper()
	r, err := http.Get(address)
	locktest.OK(t, err)
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	locktest.OK(t, err)
	return r.StatusCode, string(text)
}

// TestUISecret: who may act must know the address that was printed, which is one of this machine.
func TestUISecret(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.held("account:17")
	addresses := map[string]bool{}
	for _, flags := range [][]string{{"--access", "operate"}, {"--access", "revoke"}, {"--access", "revoke", "--addr", "0.0.0.0:0"}} {
		_, address := c.serves(append([]string{"--addr", "127.0.0.1:0"}, flags...)...)
		u := mustParse(t, address)
		if len(u.Path) < 20 || addresses[u.Path] || u.Hostname() != "127.0.0.1" {
			t.Errorf("%q: the address is %s", flags, address)
		}
		addresses[u.Path] = true
		if status, body := fetch(t, address+"/locks"); status != 200 || !strings.Contains(body, "account:17") {
			t.Errorf("%q: %d %s", flags, status, body)
		}
		if status, body := fetch(t, address+"/lock?name=account:17"); status != 200 || !strings.Contains(body, `action="release?`) {
			t.Errorf("%q: %d %s", flags, status, body)
		}
		for _, path := range []string{"/", "/lock?name=account:17", "/release?name=account:17", "/ui.js", "/x/lock?name=account:17"} {
			if status, body := fetch(t, "http://"+u.Host+path); status != 404 || strings.Contains(body, "account") {
				t.Errorf("%q: %s without the secret: %d %s", flags, path, status, body)
			}
		}
	}
	if _, address := c.serves("--addr", "0.0.0.0:0"); mustParse(t, address).Hostname() != "127.0.0.1" || mustParse(t, address).Path != "" {
		t.Errorf("the address of a page to look at is %s", address)
	}
}
