package oncehttp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
)

// maxResponse is the largest recorded response body. As JSON, with base64 and headers, it fits into
// once.MaxResult.
const maxResponse = 700 << 10

// Response is a recorded response.
type Response struct {
	Status int         `json:"status"`           // 200 to 999
	Header http.Header `json:"header,omitempty"` // of the allowed headers
	Body   []byte      `json:"body,omitempty"`

	tooLarge bool // the body is incomplete
}

var errTooLarge = errors.New("oncehttp: the response body is larger than " + strconv.Itoa(maxResponse) + " bytes")

// errRecord: what is stored as the response of a key is none, for instance because its status is 1000.
var errRecord = errors.New("oncehttp: the recorded response is invalid")

// validStatus reports whether net/http sends a response with that status, instead of panicking, as the
// last one to a request.
func validStatus(status int) bool { return status >= http.StatusOK && status <= 999 }

// MarshalJSON implements json.Marshaler. It fails for a response that is too large, so that it is
// not stored.
func (r Response) MarshalJSON() ([]byte, error) {
	if r.tooLarge {
		return nil, errTooLarge
	}
	type plain Response
	return json.Marshal(plain(r))
}

// replay sends a recorded response. It returns an error that wraps errRecord, and sends nothing, if the
// status is invalid: the row may have been written by another program.
func (r Response) replay(w http.ResponseWriter) error {
	if !validStatus(r.Status) {
		return fmt.Errorf("%w: its status is %d", errRecord, r.Status)
	}
	for name, values := range r.Header {
		w.Header()[name] = values
	}
	w.Header().Set(ReplayedHeader, "true")
	w.WriteHeader(r.Status)
	_, _ = w.Write(r.Body) // the client may have left
	return nil
}

// recorder is the ResponseWriter of the handler. It keeps the response until it is recorded.
type recorder struct {
	out      http.ResponseWriter // gets a response that is too large; nil to drop it
	header   http.Header
	sent     http.Header // as it was when the handler wrote the status
	status   int
	body     bytes.Buffer
	tooLarge bool
}

func newRecorder(out http.ResponseWriter) *recorder {
	return &recorder{out: out, header: http.Header{}}
}

// Header implements http.ResponseWriter.
func (r *recorder) Header() http.Header { return r.header }

// WriteHeader implements http.ResponseWriter. It ignores informational responses, and replaces a status
// at which net/http panics, because the request is done and its response would fail at each replay.
func (r *recorder) WriteHeader(status int) {
	if r.status != 0 || status < http.StatusOK {
		return
	}
	if !validStatus(status) {
		status = http.StatusInternalServerError
	}
	r.status, r.sent = status, r.header.Clone()
}

// Write implements http.ResponseWriter.
func (r *recorder) Write(p []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	if !r.tooLarge && r.body.Len()+len(p) > maxResponse {
		r.tooLarge = true
		if r.out != nil {
			r.send(r.out)
		}
	}
	switch {
	case !r.tooLarge:
		return r.body.Write(p)
	case r.out != nil:
		return r.out.Write(p)
	}
	return len(p), nil
}

// finish ends the response of a handler that has returned, and returns what to record.
func (r *recorder) finish(allowed map[string]bool) Response {
	r.WriteHeader(http.StatusOK)
	if r.body.Len() > 0 && r.sent.Get("Content-Type") == "" && r.sent.Get("Content-Encoding") == "" {
		r.sent.Set("Content-Type", http.DetectContentType(r.body.Bytes())) // as net/http does
	}
	recorded := Response{Status: r.status, Header: http.Header{}, Body: r.body.Bytes(), tooLarge: r.tooLarge}
	for name, values := range r.sent {
		if allowed[name] {
			recorded.Header[name] = values
		}
	}
	return recorded
}

// is reports whether the response is the recorded one, and not that of another request.
func (r *recorder) is(recorded Response) bool {
	return r.status == recorded.Status && bytes.Equal(r.body.Bytes(), recorded.Body)
}

// send sends the response as the handler wrote it.
func (r *recorder) send(w http.ResponseWriter) {
	for name, values := range r.sent {
		w.Header()[name] = values
	}
	w.WriteHeader(r.status)
	_, _ = w.Write(r.body.Bytes()) // the client may have left
}
