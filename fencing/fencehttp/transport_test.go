package fencehttp_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/fencing/fencehttp"
)

// want fails the test unless err is the sentinel, or nil if the sentinel is nil.
func want(t *testing.T, what string, err, sentinel error) {
	t.Helper()
	if !errors.Is(err, sentinel) {
		t.Errorf("%s: %v, want %v", what, err, sentinel)
	}
}

// TestTransportKeepsTheFenceFromOtherHosts: a redirect chooses the host, so the Transport sends the
// fence only to the host that the caller has named. net/http carries out the redirects here.
func TestTransportKeepsTheFenceFromOtherHosts(t *testing.T) {
	t.Parallel()
	echo := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if to := r.URL.Query().Get("to"); to != "" {
			http.Redirect(w, r, to, http.StatusTemporaryRedirect)
			return
		}
		_, _ = io.WriteString(w, "fence:"+r.Header.Get(fencehttp.Header))
	})
	a, b := httptest.NewServer(echo), httptest.NewServer(echo) // other ports: other hosts
	defer a.Close()
	defer b.Close()
	base := &http.Transport{}
	defer base.CloseIdleConnections()
	client := &http.Client{Transport: &fencehttp.Transport{Base: base}}
	ctx := fencehttp.NewContext(t.Context(), fencing.Fence{Name: "n", Token: 7})
	for to, want := range map[string]string{"": "fence:n@7", a.URL: "fence:n@7", "/other": "fence:n@7", b.URL: "fence:"} {
		r, err := http.NewRequestWithContext(ctx, http.MethodPut, a.URL+"/?to="+url.QueryEscape(to), http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if err != nil || string(body) != want {
			t.Errorf("to %q: the server got %q, want %q, %v", to, body, want, err)
		}
	}
}

// recorder is a RoundTripper that records the fences of requests, and returns an error.
type recorder struct{ fences []string }

var errRecorded = errors.New("recorded")

func (r *recorder) RoundTrip(request *http.Request) (*http.Response, error) {
	r.fences = append(r.fences, request.Header.Get(fencehttp.Header))
	return nil, errRecorded
}

// TestTransportComparesOrigins of redirected requests, each of which carries the response that led
// to it, as net/http builds them. A redirect away and back does not help: the other host chose it.
func TestTransportComparesOrigins(t *testing.T) {
	t.Parallel()
	ctx := fencehttp.NewContext(t.Context(), fencing.Fence{Name: "n", Token: 7})
	for way, sent := range map[string]bool{
		"http://host/a http://host/b":                true,
		"http://host/a http://host/b http://host/c":  true,
		"http://host/ http://HOST:80/":               true,
		"https://host:443/ https://host/":            true,
		"http://host/ https://host/":                 true, // the upgrade that servers ask for
		"http://host:80/ https://host:443/":          true,
		"http://[::1]/ http://[::1]:80/":             true,
		"https://host/ http://host/":                 false,
		"http://host:8080/ https://host:8443/":       false,
		"http://host/ http://host:8080/":             false,
		"http://host/ http://sub.host/":              false,
		"http://sub.host/ http://host/":              false,
		"http://host/ http://other/ http://host/":    false,
		"http://host/ http://other/ http://other/b":  false,
		"http://host/a http://host/b http://other/b": false,
		" http://host/":                              false, // a RoundTripper that does not set the request of its response
	} {
		var r *http.Request
		for i, address := range strings.Split(way, " ") {
			before := r
			if address == "" {
				continue
			}
			var err error
			if r, err = http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody); err != nil {
				t.Fatal(err)
			}
			if i > 0 {
				r.Response = &http.Response{Request: before}
			}
		}
		base := &recorder{}
		answer, err := (&fencehttp.Transport{Base: base}).RoundTrip(r)
		if err == nil {
			_ = answer.Body.Close()
		}
		if want := map[bool]string{true: "n@7"}[sent]; !errors.Is(err, errRecorded) || base.fences[0] != want {
			t.Errorf("%s: sent %q, want %q", way, base.fences[0], want)
		}
	}
}

// closing records that it was closed.
type closing struct {
	io.Reader
	closed bool
}

func (c *closing) Close() error { c.closed = true; return nil }

// TestCheckResponseLeavesOthersAlone: the caller can read the whole body of a 412 that is not a
// Handler's.
func TestCheckResponseLeavesOthersAlone(t *testing.T) {
	t.Parallel()
	const ours = `{"error":"stale","message":"m","resource":"r","token":1,"current":2}`
	for name, test := range map[string]struct{ contentType, body string }{
		"empty":            {"application/json", ""},
		"no JSON":          {"application/json", "no JSON"},
		"another error":    {"application/json", `{"error": "etag"}`},
		"another type":     {"application/json", `{"error": 1}`},
		"their own stale":  {"application/json", `{"error": "stale"}`},
		"without a token":  {"application/json", `{"error": "stale", "resource": "r"}`},
		"longer than ours": {"application/json", `{"error": "etag", "filler": "` + strings.Repeat("x", 200<<10) + `"}`},
		"ours, and more":   {"application/json", ours + strings.Repeat(" ", 200<<10)},
		"another media":    {"text/plain", ours},
		"no media":         {"", ours},
	} {
		body := &closing{Reader: strings.NewReader(test.body)}
		r := &http.Response{StatusCode: http.StatusPreconditionFailed, Header: http.Header{"Content-Type": {test.contentType}}, Body: body}
		want(t, name, fencehttp.CheckResponse(r), nil)
		rest, err := io.ReadAll(r.Body)
		if string(rest) != test.body || err != nil {
			t.Errorf("%s: %d bytes are left of %d, %v", name, len(rest), len(test.body), err)
		}
		if err := r.Body.Close(); err != nil || !body.closed {
			t.Errorf("%s: the body is not closed", name)
		}
	}
	// A proxy in between may add a parameter.
	ourBody := io.NopCloser(strings.NewReader(ours))
	want(t, "ours", fencehttp.CheckResponse(&http.Response{
		StatusCode: http.StatusPreconditionFailed, Header: http.Header{"Content-Type": {"Application/JSON; charset=utf-8"}}, Body: ourBody,
	}), fencing.ErrStale)
	// One that breaks off is an error now, and again when the caller reads it.
	errCut := errors.New("cut")
	r := &http.Response{
		StatusCode: http.StatusPreconditionFailed, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(io.MultiReader(strings.NewReader(`{"error":`), iotest.ErrReader(errCut))),
	}
	want(t, "cut", fencehttp.CheckResponse(r), errCut)
	if rest, err := io.ReadAll(r.Body); string(rest) != `{"error":` || !errors.Is(err, errCut) {
		t.Errorf("cut: %q, %v", rest, err)
	}
}
