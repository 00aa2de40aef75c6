package ui

import (
	"net/http"
	"time"
)

// BePatient makes a handler wait for reads that take long on a loaded machine, and update its open pages
// without a rest, which would be as much longer.
func BePatient(h http.Handler) {
	s := h.(*handler).sampler
	s.restless, s.bound = true, 5*time.Minute
}
