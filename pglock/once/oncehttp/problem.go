package oncehttp

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/pglock/once"
)

// problem is the body of a response of this package, as RFC 9457 describes it.
type problem struct {
	Type   string `json:"type,omitempty"` // the documentation of the kind; about:blank if there is none
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	Error  string `json:"error"` // the kind
}

func (c *config) refuse(w http.ResponseWriter, status int, kind, detail string) {
	p := problem{Title: http.StatusText(status), Status: status, Detail: detail, Error: kind}
	if c.documentation != nil {
		page := *c.documentation
		page.Fragment = kind
		p.Type = page.String()
		w.Header().Set("Link", "<"+p.Type+`>; rel="describedby"; type="text/html"`)
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Cache-Control", "no-store")
	if status == http.StatusConflict || status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(p) // the client may have left
}

// problems are the responses for the errors of a call, of which the first that matches is sent.
var problems = []struct {
	err    error
	status int
	kind   string
	detail string
}{
	{once.ErrInvalidKey, http.StatusBadRequest, "invalid_key", fmt.Sprintf("the key must have 1 to %d bytes, with its scope", errs.MaxName)},
	{once.ErrMismatch, http.StatusUnprocessableEntity, "mismatch", "the key was used for a request with another method, path, query or body, which may have had its effect: repeat that request as it was; a new key is for a new effect"},
	{once.ErrInProgress, http.StatusConflict, "in_progress", "a request with the key is in progress: try again later"},
	{once.ErrOutcomeUnknown, http.StatusInternalServerError, "outcome_unknown", "an earlier request with the key was interrupted, and its outcome is unknown"},
	{once.ErrResultTooLarge, http.StatusInternalServerError, "response_too_large", "the response is too large to be recorded, and nothing was done"},
	{once.ErrNoResult, http.StatusGone, "not_stored", "the request with the key is done, and its response was not stored"},
	{errRecord, http.StatusInternalServerError, "invalid_record", "the request with the key is done, and its stored response is invalid"},
	{nil, http.StatusServiceUnavailable, "unavailable", "the request could not be handled: try again with the same key"},
}

func (h *handler) refuseCall(w http.ResponseWriter, r *http.Request, err error) {
	var syntax *json.SyntaxError
	var field *json.UnmarshalTypeError
	if errors.As(err, &syntax) || errors.As(err, &field) {
		err = fmt.Errorf("%w: %w", errRecord, err)
	}
	for _, p := range problems {
		if p.err != nil && !errors.Is(err, p.err) {
			continue
		}
		if p.status >= http.StatusInternalServerError {
			h.logger.WarnContext(r.Context(), "oncehttp: no response", "method", r.Method, "path", r.URL.Path, "answer", p.kind, "error", err)
		}
		h.refuse(w, p.status, p.kind, p.detail)
		return
	}
}
