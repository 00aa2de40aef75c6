package oncehttp_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/once"
	"github.com/pglock/pglock-go/pglock/once/oncehttp"
)

// upload sends a multipart request, as a client's library does, with that boundary. The parts are a
// form's field and a file.
func upload(t *testing.T, h http.Handler, boundary, field, filename, content string) *httptest.ResponseRecorder {
	t.Helper()
	var body bytes.Buffer
	w := multipart.NewWriter(&body)
	err := w.SetBoundary(boundary)
	if err == nil {
		err = w.WriteField("field", field)
	}
	part, e := w.CreateFormFile("file", filename)
	if err = errors.Join(err, e); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(part, content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return postAs(h, w.FormDataContentType(), "/", body.String())
}

func postAs(h http.Handler, contentType, path, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
	r.Header.Set(oncehttp.Header, "k")
	r.Header.Set("Content-Type", contentType)
	return serve(h, r)
}

// TestRepeatedUpload: a client's library makes a new boundary for each attempt. The boundary does
// not count, and each part does. A body that breaks off has no parts, so its bytes count.
func TestRepeatedUpload(t *testing.T) {
	t.Parallel()
	for kind, build := range handlers {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			h := build(f, func(w http.ResponseWriter, r *http.Request) {
				if err := r.ParseMultipartForm(1 << 20); err != nil || r.FormValue("field") != "a" || len(r.MultipartForm.File["file"]) != 1 {
					t.Errorf("the handler finds %v, %v", r.MultipartForm, err)
				}
				f.number(w, r)
			})
			want(t, "first", upload(t, h, "b1", "a", "f.txt", "content"), http.StatusCreated, "call 1", false)
			want(t, "another boundary", upload(t, h, "b2", "a", "f.txt", "content"), http.StatusCreated, "call 1", true)
			for what, w := range map[string]*httptest.ResponseRecorder{
				"field":     upload(t, h, "b1", "b", "f.txt", "content"),
				"file name": upload(t, h, "b1", "a", "g.txt", "content"),
				"content":   upload(t, h, "b1", "a", "f.txt", "content "),
				"moved":     upload(t, h, "b1", "a", "f.txt", "content\r\n--b1\r\nX: y\r\n\r\nmore"),
				"query":     postAs(h, "multipart/form-data; boundary=b1", "/?a=1", "--b1--"),
				"no parts":  postAs(h, "multipart/form-data; boundary=b1", "/", "--b1--"),
			} {
				wantRefusal(t, "another "+what, w, http.StatusUnprocessableEntity, "mismatch")
			}
		})
	}
	f := newFixture(t)
	h := f.handler(f.number)
	broken := "--b1\r\nContent-Disposition: form-data; name=field\r\n\r\na"
	want(t, "broken off", postAs(h, "multipart/form-data; boundary=b1", "/", broken), http.StatusCreated, "call 1", false)
	want(t, "broken off, again", postAs(h, "multipart/form-data; boundary=b1", "/", broken), http.StatusCreated, "call 1", true)
	for what, contentType := range map[string]string{"b2": "multipart/form-data; boundary=b2", "no": "multipart/form-data", "invalid": "multipart/form-data; ="} {
		w := postAs(h, contentType, "/", strings.ReplaceAll(broken, "b1", "b2"))
		wantRefusal(t, "broken off, boundary "+what, w, http.StatusUnprocessableEntity, "mismatch")
	}
}

// TestUploadOfManyParts: the work for one request is bounded, so more than 1000 parts are compared
// byte by byte, as no form has them. Up to 1000 and of another type, they are parts.
func TestUploadOfManyParts(t *testing.T) {
	t.Parallel()
	for n, replayed := range map[int]bool{1000: true, 1001: false} {
		f := newFixture(t)
		h := f.handler(f.number)
		post := func(media, boundary string) *httptest.ResponseRecorder {
			body := strings.Repeat("--"+boundary+"\r\n\r\n\r\n", n) + "--" + boundary + "--"
			return postAs(h, media+"; boundary="+boundary, "/", body)
		}
		want(t, "first", post("multipart/form-data", "b1"), http.StatusCreated, "call 1", false)
		want(t, "again", post("multipart/form-data", "b1"), http.StatusCreated, "call 1", true)
		if replayed {
			want(t, "another boundary", post("multipart/form-data", "b2"), http.StatusCreated, "call 1", true)
			wantRefusal(t, "another type", post("multipart/mixed", "b1"), http.StatusUnprocessableEntity, "mismatch")
		} else {
			wantRefusal(t, "another boundary", post("multipart/form-data", "b2"), http.StatusUnprocessableEntity, "mismatch")
		}
	}
}

// TestMismatchGivesNoBadAdvice: a request that is repeated with a new key has its effect twice.
func TestMismatchGivesNoBadAdvice(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	h := f.handler(f.number)
	post(h, "k", "/", "a")
	if w := post(h, "k", "/", "b"); !strings.Contains(w.Body.String(), "may have had its effect") || strings.Contains(w.Body.String(), "use a new key") {
		t.Errorf("the answer is %s", w.Body)
	}
	_, err := once.Do(t.Context(), f.client, "/k", nil, func(context.Context, *pglock.Lease) (string, error) { return "", nil })
	if !errors.Is(err, once.ErrMismatch) || !strings.Contains(err.Error(), "may have had its effect") || strings.Contains(err.Error(), "use a new key") {
		t.Errorf("the error of package once: %v", err)
	}
}

// TestWithFingerprint: the function says which requests are the same, and the handler gets the
// whole body. The method and the path count in any case.
func TestWithFingerprint(t *testing.T) {
	t.Parallel()
	for kind, build := range handlers {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			h := build(f, func(w http.ResponseWriter, r *http.Request) {
				if body, err := io.ReadAll(r.Body); err != nil || string(body) != "pay 10, attempt 1" {
					t.Errorf("the handler reads %q, %v", body, err)
				}
				f.number(w, r)
			}, oncehttp.WithFingerprint(func(r *http.Request) ([]byte, error) {
				body, err := io.ReadAll(r.Body)
				order, _, ok := strings.Cut(string(body), ", attempt ")
				if !ok {
					return nil, errors.New("there is no attempt")
				}
				return []byte(order), err
			}))
			want(t, "first", post(h, "k", "/", "pay 10, attempt 1"), http.StatusCreated, "call 1", false)
			want(t, "again", post(h, "k", "/?a=1", "pay 10, attempt 2"), http.StatusCreated, "call 1", true)
			wantRefusal(t, "another order", post(h, "k", "/", "pay 20, attempt 3"), http.StatusUnprocessableEntity, "mismatch")
			wantRefusal(t, "another path", post(h, "k", "/2", "pay 10, attempt 1"), http.StatusUnprocessableEntity, "mismatch")
			wantRefusal(t, "another method", send(h, http.MethodPut, "k", "/", "pay 10, attempt 1"), http.StatusUnprocessableEntity, "mismatch")
			w := post(h, "l", "/", "pay 10")
			wantRefusal(t, "its error", w, http.StatusBadRequest, "invalid_body")
			if !strings.Contains(w.Body.String(), "there is no attempt") || f.calls.Load() != 1 {
				t.Errorf("%s, %d calls", w.Body, f.calls.Load())
			}
		})
	}
}
