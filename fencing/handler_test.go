package fencing_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pglock/pglock-go/fencing"
)

// undecided is a Checker whose database is gone.
type undecided struct{}

func (undecided) Accept(context.Context, string, fencing.Token) error {
	return errors.New("secret of the database")
}

// seen is a handler that tells which fence came.
var seen = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	f, ok := fencing.FromContext(r.Context())
	text, _ := f.MarshalText()
	if !ok {
		text = []byte("none")
	}
	_, _ = w.Write(text)
})

// serve starts a server, and returns how to send it a request through a Transport.
func serve(t *testing.T, h http.Handler) func(ctx context.Context, edit func(*http.Request)) *http.Response {
	t.Helper()
	server := httptest.NewServer(h)
	base := &http.Transport{}
	client := &http.Client{Transport: &fencing.Transport{Base: base}}
	t.Cleanup(func() { base.CloseIdleConnections(); server.Close() })
	return func(ctx context.Context, edit func(*http.Request)) *http.Response {
		t.Helper()
		r, err := http.NewRequestWithContext(ctx, http.MethodPut, server.URL+"/objects/7", strings.NewReader("body"))
		if err != nil {
			t.Fatal(err)
		}
		if edit != nil {
			edit(r)
		}
		before := r.Header.Clone()
		answer, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Header) != len(before) {
			t.Errorf("the caller's request became %v", r.Header)
		}
		t.Cleanup(func() { _ = answer.Body.Close() })
		return answer
	}
}

func TestHandlerRefusesAnOlderToken(t *testing.T) {
	t.Parallel()
	send := serve(t, fencing.Handler(seen, &fencing.MemoryChecker{}))
	with := func(name string, token fencing.Token) *http.Response {
		return send(fencing.NewContext(t.Context(), fencing.Fence{Name: name, Token: token}), nil)
	}
	const odd = "a/b@c d\r\nX: y%41 漢"
	for _, name := range []string{"account:1", odd} {
		answer := with(name, 34)
		body, _ := io.ReadAll(answer.Body)
		if f, err := fencing.ParseFence(string(body)); answer.StatusCode != http.StatusOK || f != (fencing.Fence{Name: name, Token: 34}) || err != nil {
			t.Errorf("%q: %d %s", name, answer.StatusCode, body)
		}
		want(t, "CheckResponse of a success", fencing.CheckResponse(answer), nil)

		answer = with(name, 33)
		if answer.StatusCode != http.StatusPreconditionFailed || answer.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%q: an older token: %d %v", name, answer.StatusCode, answer.Header)
		}
		var stale *fencing.StaleError
		if err := fencing.CheckResponse(answer); !errors.As(err, &stale) || *stale != (fencing.StaleError{Resource: name, Token: 33, Current: 34}) {
			t.Errorf("%q: %v", name, err)
		}
		if answer := with(name, 34); answer.StatusCode != http.StatusOK {
			t.Errorf("%q: the same token again: %d", name, answer.StatusCode)
		}
	}
	// The same name in another schema is another lock.
	other := fencing.NewContext(t.Context(), fencing.Fence{Schema: "other", Name: "account:1", Token: 1})
	if answer := send(other, nil); answer.StatusCode != http.StatusOK {
		t.Errorf("another schema: %d", answer.StatusCode)
	}
}

func TestHandlerAnswersInJSON(t *testing.T) {
	t.Parallel()
	header := func(values ...string) func(*http.Request) {
		return func(r *http.Request) { r.Header["Fencing-Token"] = values }
	}
	byPath := fencing.Resource(func(r *http.Request, _ fencing.Fence) string { return strings.TrimPrefix(r.URL.Path, "/objects/") })
	none := fencing.Resource(func(*http.Request, fencing.Fence) string { return "" })
	for name, tc := range map[string]struct {
		checker fencing.Checker
		opts    []fencing.HandlerOption
		edit    func(*http.Request)
		status  int
		error   string
	}{
		"missing":     {&fencing.MemoryChecker{}, nil, nil, http.StatusPreconditionRequired, "missing"},
		"allowed":     {&fencing.MemoryChecker{}, []fencing.HandlerOption{fencing.AllowUnfenced()}, nil, http.StatusOK, ""},
		"empty":       {&fencing.MemoryChecker{}, []fencing.HandlerOption{fencing.AllowUnfenced()}, header(""), http.StatusBadRequest, "invalid"},
		"no fence":    {&fencing.MemoryChecker{}, nil, header("33"), http.StatusBadRequest, "invalid"},
		"not encoded": {&fencing.MemoryChecker{}, nil, header("n%@3"), http.StatusBadRequest, "invalid"},
		"two":         {&fencing.MemoryChecker{}, nil, header("n@1", "n@2"), http.StatusBadRequest, "invalid"},
		"token 0":     {&fencing.MemoryChecker{}, nil, header("n@0"), http.StatusBadRequest, "invalid"},
		"good":        {&fencing.MemoryChecker{}, nil, header("n@1"), http.StatusOK, ""},
		"by path":     {seven(t, 2), []fencing.HandlerOption{byPath}, header("n@1"), http.StatusPreconditionFailed, "stale"},
		"no resource": {&fencing.MemoryChecker{}, []fencing.HandlerOption{none}, header("n@1"), http.StatusBadRequest, "invalid"},
		"not decided": {undecided{}, nil, header("n@1"), http.StatusServiceUnavailable, "unavailable"},
	} {
		answer := serve(t, fencing.Handler(seen, tc.checker, tc.opts...))(t.Context(), tc.edit)
		body, _ := io.ReadAll(answer.Body)
		if answer.StatusCode != tc.status {
			t.Errorf("%s: %d %s", name, answer.StatusCode, body)
		}
		if strings.Contains(string(body), "secret") {
			t.Errorf("%s: tells too much: %s", name, body)
		}
		if tc.error == "" {
			continue
		}
		var told struct{ Error, Message string }
		if err := json.Unmarshal(body, &told); err != nil || told.Error != tc.error || told.Message == "" || answer.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: %s, %v", name, body, err)
		}
	}
}

// seven returns a Checker that has accepted a token for the resource "7".
func seven(t *testing.T, token fencing.Token) fencing.Checker {
	t.Helper()
	c := &fencing.MemoryChecker{}
	if err := c.Accept(t.Context(), "7", token); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestTransportPassesOthersOn(t *testing.T) {
	t.Parallel()
	send := serve(t, fencing.Handler(seen, &fencing.MemoryChecker{}, fencing.AllowUnfenced()))
	body, _ := io.ReadAll(send(t.Context(), nil).Body)
	if string(body) != "none" {
		t.Errorf("a request without a fence came with %s", body)
	}
	ctx := fencing.NewContext(t.Context(), fencing.Fence{Name: "n"})
	r, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://never.invalid", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := (&fencing.Transport{}).RoundTrip(r)
	if err == nil {
		_ = answer.Body.Close()
	}
	want(t, "a fence that no grant can have", err, fencing.ErrInvalidFence)
}

func TestCheckResponseLeavesOthersAlone(t *testing.T) {
	t.Parallel()
	for _, body := range []string{"", "no JSON", `{"error": "etag"}`, `{"error": 1}`} {
		r := &http.Response{StatusCode: http.StatusPreconditionFailed, Body: io.NopCloser(strings.NewReader(body))}
		want(t, body, fencing.CheckResponse(r), nil)
	}
}
