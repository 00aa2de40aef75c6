package ui

import "net/http"

// UpdateAtOnce makes a handler update its open pages without a rest.
func UpdateAtOnce(h http.Handler) { h.(*handler).sampler.rest = 0 }
