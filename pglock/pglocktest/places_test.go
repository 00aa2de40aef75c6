package pglocktest_test

import (
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/pglocktest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// calm makes no lease renew while a test runs, however slow the machine is.
var calm = pglock.WithTTL(5 * time.Minute)

// places are the two places of locks.
var places = map[string]func(t *testing.T) *pglocktest.Locks{
	"fake":   func(t *testing.T) *pglocktest.Locks { t.Helper(); return pglocktest.Fake(t, calm) },
	"server": func(t *testing.T) *pglocktest.Locks { t.Helper(); return pglocktest.New(t, pgtest.Pool(t), calm) },
}
