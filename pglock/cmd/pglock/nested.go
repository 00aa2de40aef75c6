package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/internal/backend"
)

// heldVariable has the grants that a command runs under, of all the pglocks around it, as JSON.
const heldVariable = "PGLOCK_HELD"

type heldGrant struct {
	Fence  fencing.Fence `json:"fence"`
	Holder string        `json:"holder"`
}

// heldAround returns the grants that this process runs under, as far as its environment says.
func heldAround() (all []heldGrant) {
	_ = json.Unmarshal([]byte(os.Getenv(heldVariable)), &all) // what another program has written there is ignored
	return all
}

// nested returns a context that carries the grants that this process runs under, so that a wait which needs their
// end is found to be a deadlock. It refuses a lock that they keep from this process, which would wait for itself.
// The environment may be old, or from another database, so only grants that the server has of that holder count.
func (f *runFlags) nested(ctx context.Context, client *pglock.Client, names []string) (context.Context, error) {
	var held []backend.Grant
	permits := map[string]int{}
	for _, h := range heldAround() {
		if cmp.Or(h.Fence.Schema, schema.Default) != f.schema {
			continue
		}
		k, err := client.Get(ctx, h.Fence.Name)
		if err != nil && !errors.Is(err, pglock.ErrNotFound) {
			return ctx, err
		}
		for _, g := range k.Live() {
			if g.Token != h.Fence.Token || g.Holder != h.Holder {
				continue
			}
			held = append(held, backend.Grant{Token: g.Token, Holder: g.Holder})
			permits[k.Name] += g.Permits
			kept := g.Exclusive || f.write || k.Permits > 0 && permits[k.Name]+f.weight > k.Permits
			if f.wait > 0 && kept && slices.Contains(names, k.Name) {
				return ctx, &failure{statusUsage, fmt.Errorf("this command runs under the lock %q already (token %d): it would wait for itself", k.Name, g.Token)}
			}
		}
	}
	return backend.WithHeld(ctx, held), nil
}
