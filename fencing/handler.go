package fencing

import (
	"encoding/json"
	"errors"
	"net/http"
)

// answer is the body of a refusal.
type answer struct {
	Error    string `json:"error"` // one of those below
	Message  string `json:"message"`
	Resource string `json:"resource,omitempty"`
	Token    Token  `json:"token,omitempty"`
	Current  Token  `json:"current,omitempty"`
}

// What an answer's error says, and its status.
const (
	answerStale       = "stale"       // 412 Precondition Failed
	answerMissing     = "missing"     // 428 Precondition Required
	answerInvalid     = "invalid"     // 400 Bad Request
	answerUnavailable = "unavailable" // 503 Service Unavailable
)

// HandlerOption changes what a Handler asks for.
type HandlerOption func(*handler)

// AllowUnfenced passes requests on that carry no fence, while not all clients send one
// yet. Default: they are refused with 428.
func AllowUnfenced() HandlerOption { return func(h *handler) { h.allowUnfenced = true } }

// Resource says which resource a request is about, for instance by its path. Default: the
// name of the fence's lock (with its schema, unless it is the default one). An empty answer
// refuses the request with 400.
//
// With it, what a request writes is also compared with the writes that came under other
// locks; without it, a client chooses by the lock that it names.
func Resource(of func(*http.Request, Fence) string) HandlerOption {
	return func(h *handler) { h.resource = of }
}

type handler struct {
	next          http.Handler
	checker       Checker
	resource      func(*http.Request, Fence) string
	allowUnfenced bool
}

// Handler passes to next the requests whose fence the checker accepts, with the fence in
// their context. It answers the others itself, with a JSON body:
//
//	412 {"error":"stale","message":"…","resource":"account:1","token":33,"current":34}
//	428 {"error":"missing", …}      no Fencing-Token
//	400 {"error":"invalid", …}      not a fence, or several
//	503 {"error":"unavailable", …}  the checker could not decide
//
// The check comes before the work. Where a request takes long, a newer one may overtake
// it: compare the token again where the result is stored.
func Handler(next http.Handler, checker Checker, opts ...HandlerOption) http.Handler {
	h := &handler{next: next, checker: checker, resource: lockOf}
	for _, o := range opts {
		o(h)
	}
	return h
}

// lockOf is the resource where nobody names another.
func lockOf(_ *http.Request, f Fence) string {
	if f.Schema == "" {
		return f.Name
	}
	return f.Schema + "/" + f.Name
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f, ok, err := FromHeader(r.Header)
	switch {
	case err != nil:
		refuse(w, http.StatusBadRequest, answer{Error: answerInvalid, Message: err.Error()})
		return
	case !ok && h.allowUnfenced:
		h.next.ServeHTTP(w, r)
		return
	case !ok:
		refuse(w, http.StatusPreconditionRequired, answer{Error: answerMissing, Message: "fencing: the request carries no " + Header})
		return
	}
	resource := h.resource(r, f)
	err = h.checker.Accept(r.Context(), resource, f.Token)
	var stale *StaleError
	switch {
	case err == nil:
		h.next.ServeHTTP(w, r.WithContext(NewContext(r.Context(), f)))
	case errors.As(err, &stale):
		refuse(w, http.StatusPreconditionFailed, answer{
			Error: answerStale, Message: stale.Error(), Resource: stale.Resource, Token: stale.Token, Current: stale.Current,
		})
	case errors.Is(err, ErrInvalidFence):
		refuse(w, http.StatusBadRequest, answer{Error: answerInvalid, Message: err.Error()})
	default: // what a server says of itself is not for its clients
		refuse(w, http.StatusServiceUnavailable, answer{Error: answerUnavailable, Message: "fencing: the token could not be checked", Resource: resource, Token: f.Token})
	}
}

func refuse(w http.ResponseWriter, status int, a answer) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(a) // the client may be gone
}
