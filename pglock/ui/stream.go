package ui

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"
)

// writeTimeout bounds the write of one update, so that a viewer who has vanished does not stay.
const writeTimeout = 10 * time.Second

// lines makes each line of a text one of an event. A carriage return ends a line as well.
var lines = strings.NewReplacer("\r\n", "\ndata: ", "\r", "\ndata: ", "\n", "\ndata: ")

// stream sends the content of a page again and again, as server-sent events, until the viewer
// leaves, may no longer look, or the server shuts down.
func (h *handler) stream(w http.ResponseWriter, r *http.Request, p *page) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(h.shutdown(r), cancel)()
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // nginx would collect them
	controller := http.NewResponseController(w)
	send := func(text string) bool {
		_ = controller.SetWriteDeadline(time.Now().Add(writeTimeout)) // also replaces that of the server
		_, err := fmt.Fprint(w, text)
		return err == nil && controller.Flush() == nil
	}
	key, load := h.loadFor(r, p)
	seen := time.Now() // the page has just been served
	for text := ": the page follows\n\n"; send(text); {
		select { // the reading below fails if both are ready
		case <-time.After(interval):
		case <-ctx.Done():
		}
		reading := h.sampler.update(ctx, key, seen, load)
		access, b := h.Authorize(r), bytes.Buffer{}
		if ctx.Err() != nil || access < Read || p.template.ExecuteTemplate(&b, "live", h.view(r, access, p, reading)) != nil {
			return
		}
		seen = reading.began
		text = "data: " + lines.Replace(b.String()) + "\n\n"
	}
}

// shutdown returns a context that ends when the server of the request begins to shut down. Shutdown
// waits for streams, and does not end the contexts of their requests.
func (h *handler) shutdown(r *http.Request) context.Context {
	server, ok := r.Context().Value(http.ServerContextKey).(*http.Server)
	if !ok {
		return context.Background()
	}
	ends, _ := h.servers.LoadOrStore(server, sync.OnceValue(func() context.Context {
		ctx, cancel := context.WithCancel(context.Background())
		server.RegisterOnShutdown(cancel)
		return ctx
	}))
	return ends.(func() context.Context)()
}
