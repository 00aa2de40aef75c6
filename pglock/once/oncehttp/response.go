package oncehttp

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
)

// Response is a recorded response.
type Response struct {
	Status int         `json:"status"`           // 200 to 999
	Header http.Header `json:"header,omitempty"` // of the allowed headers
	Body   []byte      `json:"body,omitempty"`
}

// errRecord: what is stored as the response of a key is none, for instance because its status is
// 1000.
var errRecord = errors.New("oncehttp: the recorded response is invalid")

// validStatus reports whether net/http sends a response with that status, instead of panicking, as
// the last one to a request.
func validStatus(status int) bool { return status >= http.StatusOK && status <= 999 }

// replay sends a recorded response with the allowed headers. It returns an error that wraps
// errRecord, and sends nothing, if the status is invalid: the row may have been written by another
// program.
func (r Response) replay(w http.ResponseWriter, allowed []string) error {
	if !validStatus(r.Status) {
		return fmt.Errorf("%w: its status is %d", errRecord, r.Status)
	}
	w.Header().Set(ReplayedHeader, "true")
	send(w, r.Status, only(r.Header, allowed), r.Body)
	return nil
}

func send(w http.ResponseWriter, status int, header http.Header, body []byte) {
	for name, values := range header {
		w.Header()[name] = values
	}
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may have left
}

// recorder is the ResponseWriter of the handler. It keeps the response until it is recorded.
type recorder struct {
	header http.Header
	sent   http.Header // as it was when the handler wrote the status
	status int
	body   bytes.Buffer
}

func (r *recorder) Header() http.Header { return r.header }

// WriteHeader implements http.ResponseWriter. It ignores informational responses, and replaces a
// status at which net/http panics, because the request is done and its response would fail at each
// replay.
func (r *recorder) WriteHeader(status int) {
	if r.status != 0 || status < http.StatusOK {
		return
	}
	if !validStatus(status) {
		status = http.StatusInternalServerError
	}
	r.status, r.sent = status, r.header.Clone()
}

func (r *recorder) Write(p []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	return r.body.Write(p)
}

// finish ends the response of a handler that has returned, and returns what to record.
func (r *recorder) finish(allowed []string) Response {
	r.WriteHeader(http.StatusOK)
	if r.body.Len() > 0 && r.sent.Get("Content-Type") == "" && r.sent.Get("Content-Encoding") == "" {
		r.sent.Set("Content-Type", http.DetectContentType(r.body.Bytes())) // as net/http does
	}
	return Response{Status: r.status, Header: only(r.sent, allowed), Body: r.body.Bytes()}
}

func only(h http.Header, allowed []string) http.Header {
	h = h.Clone()
	maps.DeleteFunc(h, func(name string, _ []string) bool {
		return !slices.ContainsFunc(allowed, func(a string) bool { return strings.EqualFold(a, name) })
	})
	return h
}

func (r *recorder) send(w http.ResponseWriter) { send(w, r.status, r.sent, r.body.Bytes()) }
