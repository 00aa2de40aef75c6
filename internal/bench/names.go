package main

import (
	"fmt"
	"math/rand/v2"
)

// pairNames is how many names are used where the number does not matter: enough that
// a name rests between two grants.
const pairNames = 100

// inTurn goes through pairNames names again and again. They are made before they are
// needed.
func inTurn() func() string {
	all := make([]string, pairNames)
	for i := range all {
		all[i] = fmt.Sprintf("name-%d", i)
	}
	next := -1
	return func() string {
		next = (next + 1) % len(all)
		return all[next]
	}
}

// atRandom draws one of n names.
func atRandom(n int) func() string {
	return func() string { return fmt.Sprintf("name-%d", rand.IntN(n)) }
}

// alwaysNew never returns a name twice.
func alwaysNew() func() string {
	serial := 0
	return func() string {
		serial++
		return fmt.Sprintf("new-%d", serial)
	}
}
