package pgtest

import (
	"crypto/rand"
	"strings"
	"sync/atomic"
)

// oddNames are shapes of names that break code which doesn't quote, or quotes by hand. An asterisk stands for what
// makes the name unique. With it, none is longer than 63 bytes, where PostgreSQL would cut it.
var oddNames = []string{
	"plain_*",
	"UPPER_Case_*",
	"with space *",
	`double"quote_*`,
	"dash-*",
	"ünïcödé_漢字_*",
	"select_*",
	"single'quote_*",
	"dot.ted_*",
	`back\slash_%s_$1_*`,
}

var namesGiven atomic.Uint64

// oddName returns a name that nobody else has, in this process or another. It goes through oddNames in turn.
func oddName() string {
	shape := oddNames[(namesGiven.Add(1)-1)%uint64(len(oddNames))]
	return strings.Replace(shape, "*", strings.ToLower(rand.Text()[:16]), 1)
}
