package fencehttp_test

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
	"github.com/pglock/pglock-go/fencing/fencehttp"
)

// undecided is a Checker whose database does not answer.
type undecided struct{}

func (undecided) Accept(context.Context, string, fencing.Token) error {
	return errors.New("secret of the database")
}

// seen is a handler that answers with the fence of the request.
var seen = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	f, ok := fencehttp.FromContext(r.Context())
	text, _ := f.MarshalText()
	if !ok {
		text = []byte("none")
	}
	_, _ = w.Write(text)
})

// serve starts a server, and returns a function that sends it a request through a Transport.
func serve(t *testing.T, h http.Handler) func(ctx context.Context, edit func(*http.Request)) *http.Response {
	t.Helper()
	server := httptest.NewServer(h)
	base := &http.Transport{}
	client := &http.Client{Transport: &fencehttp.Transport{Base: base}}
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
	send := serve(t, fencehttp.Handler(seen, &fencing.MemoryChecker{}))
	with := func(name string, token fencing.Token) *http.Response {
		return send(fencehttp.NewContext(t.Context(), fencing.Fence{Name: name, Token: token}), nil)
	}
	const odd = "a/b@c d\r\nX: y%41 漢"
	for name, resource := range map[string]string{"account:1": "account:1", odd: "/" + odd} {
		answer := with(name, 34)
		body, _ := io.ReadAll(answer.Body)
		if f, err := fencing.ParseFence(string(body)); answer.StatusCode != http.StatusOK || f != (fencing.Fence{Name: name, Token: 34}) || err != nil {
			t.Errorf("%q: %d %s", name, answer.StatusCode, body)
		}
		want(t, "CheckResponse of a success", fencehttp.CheckResponse(answer), nil)

		answer = with(name, 33)
		if answer.StatusCode != http.StatusPreconditionFailed || answer.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%q: an older token: %d %v", name, answer.StatusCode, answer.Header)
		}
		var stale *fencing.StaleError
		if err := fencehttp.CheckResponse(answer); !errors.As(err, &stale) || *stale != (fencing.StaleError{Resource: resource, Token: 33, Current: 34}) {
			t.Errorf("%q: %v", name, err)
		}
		if answer := with(name, 34); answer.StatusCode != http.StatusOK {
			t.Errorf("%q: the same token again: %d", name, answer.StatusCode)
		}
	}
	// The same name in another schema is another lock.
	other := fencehttp.NewContext(t.Context(), fencing.Fence{Schema: "other", Name: "account:1", Token: 1})
	if answer := send(other, nil); answer.StatusCode != http.StatusOK {
		t.Errorf("another schema: %d", answer.StatusCode)
	}
}

// TestHandlerKeepsLocksApart: two locks are two resources, whatever their names and schemas are.
func TestHandlerKeepsLocksApart(t *testing.T) {
	t.Parallel()
	var fences []fencing.Fence
	for _, schema := range []string{"", "a", "b", "a/b", "/", "+", "a%2Fb", "%", "Pglock", "a b"} {
		for _, name := range []string{"b", "a/b", "/a/b", "//b", "b/b", "a%2Fb", "%2F", "/", "a+b", "+", " ", "Pglock/b", "pglock/b"} {
			fences = append(fences, fencing.Fence{Schema: schema, Name: name, Token: 1})
		}
	}
	send := serve(t, fencehttp.Handler(seen, &fencing.MemoryChecker{}))
	for range 2 { // the second time, its own token is still the highest
		for i, f := range fences { // each has seen a higher token than the one before
			f.Token = fencing.Token(len(fences) + i)
			if answer := send(fencehttp.NewContext(t.Context(), f), nil); answer.StatusCode != http.StatusOK {
				t.Errorf("%+v: shares its resource: %v", f, fencehttp.CheckResponse(answer))
			}
		}
	}
}

func TestHandlerAnswersInJSON(t *testing.T) {
	t.Parallel()
	header := func(values ...string) func(*http.Request) {
		return func(r *http.Request) { r.Header["Fencing-Token"] = values }
	}
	byPath := fencehttp.WithResource(func(r *http.Request, _ fencing.Fence) string { return strings.TrimPrefix(r.URL.Path, "/objects/") })
	seven := &fencing.MemoryChecker{} // has accepted 2 for the resource "7"
	want(t, "the resource", seven.Accept(t.Context(), "7", 2), nil)
	none := fencehttp.WithResource(func(*http.Request, fencing.Fence) string { return "" })
	for name, tc := range map[string]struct {
		checker fencing.Checker
		opts    []fencehttp.HandlerOption
		edit    func(*http.Request)
		status  int
		error   string
	}{
		"missing":     {&fencing.MemoryChecker{}, nil, nil, http.StatusPreconditionRequired, "missing"},
		"allowed":     {&fencing.MemoryChecker{}, []fencehttp.HandlerOption{fencehttp.AllowUnfenced()}, nil, http.StatusOK, ""},
		"empty":       {&fencing.MemoryChecker{}, []fencehttp.HandlerOption{fencehttp.AllowUnfenced()}, header(""), http.StatusBadRequest, "invalid"},
		"no fence":    {&fencing.MemoryChecker{}, nil, header("33"), http.StatusBadRequest, "invalid"},
		"not encoded": {&fencing.MemoryChecker{}, nil, header("n%@3"), http.StatusBadRequest, "invalid"},
		"two":         {&fencing.MemoryChecker{}, nil, header("n@1", "n@2"), http.StatusBadRequest, "invalid"},
		"token 0":     {&fencing.MemoryChecker{}, nil, header("n@0"), http.StatusBadRequest, "invalid"},
		"by path":     {seven, []fencehttp.HandlerOption{byPath}, header("n@1"), http.StatusPreconditionFailed, "stale"},
		"no resource": {&fencing.MemoryChecker{}, []fencehttp.HandlerOption{none}, header("n@1"), http.StatusBadRequest, "invalid"},
		"full":        {&fencing.MemoryChecker{Limit: -1}, nil, header("n@1"), http.StatusServiceUnavailable, "unavailable"},
		"not decided": {undecided{}, nil, header("n@1"), http.StatusServiceUnavailable, "unavailable"},
	} {
		answer := serve(t, fencehttp.Handler(seen, tc.checker, tc.opts...))(t.Context(), tc.edit)
		body, _ := io.ReadAll(answer.Body)
		if answer.StatusCode != tc.status {
			t.Errorf("%s: %d %s", name, answer.StatusCode, body)
		}
		if strings.Contains(string(body), "secret") {
			t.Errorf("%s: the body has a secret: %s", name, body)
		}
		if tc.error == "" {
			continue
		}
		var refused struct{ Error, Message string }
		if err := json.Unmarshal(body, &refused); err != nil || refused.Error != tc.error || refused.Message == "" || answer.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: %s, %v", name, body, err)
		}
	}
}

// TestTransportSendsOtherRequestsUnchanged, those without a fence.
func TestTransportSendsOtherRequestsUnchanged(t *testing.T) {
	t.Parallel()
	send := serve(t, fencehttp.Handler(seen, &fencing.MemoryChecker{}, fencehttp.AllowUnfenced()))
	body, _ := io.ReadAll(send(t.Context(), nil).Body)
	if string(body) != "none" {
		t.Errorf("a request without a fence came with %s", body)
	}
	ctx := fencehttp.NewContext(t.Context(), fencing.Fence{Name: "n"})
	r, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://never.invalid", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := (&fencehttp.Transport{}).RoundTrip(r)
	if err == nil {
		_ = answer.Body.Close()
	}
	want(t, "a fence that no grant can have", err, fencing.ErrInvalidFence)
}

// TestSeveralFencesAreRefused: a proxy may have joined two headers by a comma, and both together
// look like one fence of a strange name. A comma in the name of a lock is encoded.
func TestSeveralFencesAreRefused(t *testing.T) {
	t.Parallel()
	for _, values := range [][]string{{"a@1", "b@2"}, {"a@1, b@2"}, {"a@1,b@2"}, {"a@1,"}, {",a@1"}, {"a@1", ""}, {"a@1, b@2", "c@3"}} {
		f, ok, err := fencehttp.FromHeader(http.Header{fencehttp.Header: values})
		if ok || !errors.Is(err, fencing.ErrInvalidFence) {
			t.Errorf("%q: %v, %v, %v", values, f, ok, err)
		}
	}
	h := http.Header{}
	sent := fencing.Fence{Name: "a@1, b", Token: 2}
	want(t, "SetHeader", fencehttp.SetHeader(h, sent), nil)
	if f, ok, err := fencehttp.FromHeader(h); !ok || err != nil || f != sent {
		t.Errorf("control: %v became %v, %v, %v", sent, f, ok, err)
	}
}
