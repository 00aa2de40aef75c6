package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/leasetable"
)

// subject says what a statement is about, the same for the same statement of another run.
func subject(args any) string {
	switch a := args.(type) {
	case string:
		return a
	case fencing.Fence:
		return a.Name
	case *leasetable.Request:
		return a.Name
	case leasetable.Ticket:
		return strings.Join(a.Names, ", ")
	case []string:
		return strings.Join(a, ", ")
	case []*leasetable.Request:
		if len(a) == 1 {
			return a[0].Name
		}
		names := make([]string, len(a))
		for i, r := range a {
			names[i] = r.Name
		}
		return strings.Join(names, ", ")
	case []leasetable.Extension:
		return fmt.Sprint(len(a), " grants")
	case []fencing.Fence:
		return fmt.Sprint(len(a), " grants")
	case []leasetable.Ticket:
		return fmt.Sprint(len(a), " tickets")
	}
	return ""
}

// before notes a statement that is about to be applied. The caller holds the world's mu.
func (j *judge) before(t *trip) {
	switch a := t.message.About.(type) {
	case []*leasetable.Request:
		for _, r := range a {
			j.asks(r, "")
			if r.Ticket == leasetable.BargeTicket && r.Heavy() {
				j.barges[waiting{t.node, r.Name}] = time.Now()
			}
		}
	case leasetable.Ticket:
		j.leaves(t.node, a, t.sent)
	case fencing.Fence:
		t.alone = t.message.Op == "release" && len(j.world.server.Tickets(a.Name)) == 0
	case *leasetable.Request:
		if t.message.Op == "handoff" {
			j.asks(a, t.message.Client)
			j.clients[t.message.Client] = t.node
		}
	}
}

// mayBeNew reports whether the attempt may have made the row of its name, which the server does if others
// wait for it.
func (j *judge) mayBeNew(r *leasetable.Request) bool {
	l := j.lines[r.Name]
	return l == nil || l.size == 0
}

// after notes the answer to a statement.
func (j *judge) after(t *trip, answer any, err error) {
	switch a := answer.(type) {
	case []leasetable.Grant:
		granted := func(g leasetable.Grant) bool { return g.Outcome == leasetable.Granted }
		asked, _ := t.message.About.([]*leasetable.Request)
		j.unchanged = t.message.Op != "acquire_slots" && !slices.ContainsFunc(a, granted) && !slices.ContainsFunc(asked, j.mayBeNew)
	case leasetable.Grant:
		if t.message.Reader != 0 && a.Outcome == leasetable.Granted {
			j.upgraded[t.message.Reader] = a.Token
		}
	case leasetable.GrantCall:
		if t.message.Op == "revoke_grant" {
			j.revokes(t.message.About.(fencing.Fence).Token, a)
		}
	case leasetable.Position:
		j.joins(t.node, t.message.Client, t.message.About.(*leasetable.Request).Names(), a)
	}
	if effects, commits := t.message.About.([]func()); commits && err == nil {
		for _, effect := range effects {
			effect()
		}
	}
}
