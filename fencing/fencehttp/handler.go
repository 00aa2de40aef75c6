package fencehttp

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/schema"
)

const contentType = "application/json"

type refusal struct {
	Error    string        `json:"error"` // the kind: see Handler
	Message  string        `json:"message"`
	Resource string        `json:"resource,omitempty"`
	Token    fencing.Token `json:"token,omitempty"`
	Current  fencing.Token `json:"current,omitempty"`
}

// HandlerOption configures a Handler.
type HandlerOption func(*handler)

// AllowUnfenced lets requests without a fence pass, for the time until all clients send one.
// Default: the handler refuses them with 428.
func AllowUnfenced() HandlerOption { return func(h *handler) { h.allowUnfenced = true } }

// WithResource sets the function that names the resource of a request, for instance by its path.
// The handler then also compares tokens of different locks that write the same resource, and
// clients cannot invent names: [fencing.MemoryChecker] keeps a limited number. The handler answers
// 400 to a request whose resource is empty or longer than 512 bytes.
//
// Default: the lock is the resource. Its name is NAME in the schema "pglock", SCHEMA/NAME in
// another schema (escaped by url.QueryEscape), and /NAME if the lock's own name contains a slash.
func WithResource(resource func(*http.Request, fencing.Fence) string) HandlerOption {
	return func(h *handler) { h.resource = resource }
}

type handler struct {
	next          http.Handler
	checker       fencing.Checker
	resource      func(*http.Request, fencing.Fence) string
	allowUnfenced bool
}

// Handler returns a handler that calls next for each request whose fence the checker accepts. The
// request's context carries the fence ([FromContext]). The handler answers the others itself, with
// a JSON body:
//
//	412 {"error":"stale","message":"…","resource":"account:1","token":33,"current":34}
//	428 {"error":"missing", …}      no Fencing-Token
//	400 {"error":"invalid", …}      not a fence, or several
//	503 {"error":"unavailable", …}  the checker could not decide
//
// The check comes before the work, so a request with a newer token can overtake a slow one.
// Compare the token again where the result is stored.
func Handler(next http.Handler, checker fencing.Checker, opts ...HandlerOption) http.Handler {
	h := &handler{next: next, checker: checker, resource: lockResource}
	for _, o := range opts {
		o(h)
	}
	return h
}

// lockResource is the default resource. No two locks share one: the text before the first slash is
// the escaped schema, which contains no slash and is empty for the default schema.
func lockResource(_ *http.Request, f fencing.Fence) string {
	switch {
	case f.Schema != "" && f.Schema != schema.Default:
		return url.QueryEscape(f.Schema) + "/" + f.Name
	case strings.Contains(f.Name, "/"):
		return "/" + f.Name
	}
	return f.Name
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f, ok, err := FromHeader(r.Header)
	switch {
	case err != nil:
		refuse(w, http.StatusBadRequest, refusal{Error: "invalid", Message: err.Error()})
		return
	case !ok && h.allowUnfenced:
		h.next.ServeHTTP(w, r)
		return
	case !ok:
		refuse(w, http.StatusPreconditionRequired, refusal{Error: "missing", Message: "fencehttp: the request has no " + Header + " header"})
		return
	}
	resource := h.resource(r, f)
	err = h.checker.Accept(r.Context(), resource, f.Token)
	var stale *fencing.StaleError
	switch {
	case err == nil:
		h.next.ServeHTTP(w, r.WithContext(NewContext(r.Context(), f)))
	case errors.As(err, &stale):
		refuse(w, http.StatusPreconditionFailed, refusal{
			Error: "stale", Message: stale.Error(), Resource: stale.Resource, Token: stale.Token, Current: stale.Current,
		})
	case errors.Is(err, fencing.ErrInvalidFence):
		refuse(w, http.StatusBadRequest, refusal{Error: "invalid", Message: err.Error()})
	default: // the error of a database is not for clients
		refuse(w, http.StatusServiceUnavailable, refusal{
			Error: "unavailable", Message: "fencehttp: the token could not be checked", Resource: resource, Token: f.Token,
		})
	}
}

func refuse(w http.ResponseWriter, status int, body refusal) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the client may have left
}
