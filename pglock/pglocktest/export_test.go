package pglocktest

import "github.com/pglock/pglock-go/pglock/internal/sim"

// In is the body of a world as package sim calls it.
func In(body func(w *World)) func(w *sim.World) { return func(w *sim.World) { body(&World{w}) } }
