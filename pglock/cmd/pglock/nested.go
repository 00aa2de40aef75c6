package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/inspect"
	"github.com/pglock/pglock-go/pglock/internal/backend"
)

// heldVariable has the leases that a command runs under, of all the pglocks around it, as JSON.
const heldVariable = "PGLOCK_HELD"

type heldLease struct {
	Schema string        `json:"schema"`
	Names  []string      `json:"names"`
	Token  fencing.Token `json:"token"`
	Holder string        `json:"holder"`
}

// heldAround returns the leases that this process runs under, as far as its environment says.
func heldAround() (all []heldLease) {
	_ = json.Unmarshal([]byte(os.Getenv(heldVariable)), &all) // what another program has written there is ignored
	return all
}

// nested returns a context that carries the grants that this process runs under, so that a wait
// which needs their end is found to be a deadlock. It refuses a lock that they keep from this
// process, which would wait for itself. The environment may be old, or from another database, so
// only grants that the server has of that holder count.
func (f *runFlags) nested(ctx context.Context, client *pglock.Client, names []string) (context.Context, error) {
	var held []backend.Grant
	permits := map[string]int{}
	for _, h := range heldAround() {
		for _, name := range h.Names {
			if h.Schema != f.schema {
				continue
			}
			k, err := client.Get(ctx, name)
			if err != nil && !isAny(err, pglock.ErrNotFound, pglock.ErrInvalidOption) {
				return ctx, err
			}
			at := slices.IndexFunc(k.Live(), func(g inspect.Grant) bool { return g.Token == h.Token && g.Holder == h.Holder })
			if at < 0 {
				continue
			}
			g := k.Live()[at]
			held = append(held, backend.Grant{Token: g.Token, Holder: g.Holder})
			permits[name] += g.Permits
			kept := g.Exclusive || f.write || k.Permits > 0 && permits[name]+f.weight > k.Permits
			if f.wait > 0 && kept && slices.Contains(names, name) {
				return ctx, &failure{statusUsage, fmt.Errorf("this command runs under the lock %q already (token %d): it would wait for itself", name, g.Token)}
			}
		}
	}
	return backend.WithHeld(ctx, held), nil
}
