//go:build linux

package chaos

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/anishathalye/porcupine"
)

// verb is what an operation of a history does.
type verb string

const (
	acquired    verb = "acquired"    // the grant was returned to its caller
	ended       verb = "ended"       // the holder has stopped: see operation
	wrote       verb = "wrote"       // an exclusive holder changed the balance from value to value + 1
	incremented verb = "incremented" // a holder of some permits added 1 to the balance
	lessened    verb = "lessened"    // a writer has become a reader
	raisedTo    verb = "raised"      // a reader has become the writer, and has a new token
	read        verb = "read"        // a shared holder has read value
)

// operation is the input of the model.
//
// The history is that of the holders: a grant begins during the call that returns it. It ends during
// the call of Release, or between the last moment at which the holder saw its lease alive and the
// first at which it saw the lease lost, or its process was gone. So the model needs no clock and no
// expiry: the server may let grants expire whenever it likes, but no holder may notice.
type operation struct {
	verb  verb
	token int64
	uses  []use
	value int64
}

// use is a part of a grant. A grant of several names has several.
type use struct {
	name             string
	weight, capacity int64 // a lease has the weight 1 of 1
}

// lock is the state of one name.
type lock struct {
	name    string
	last    int64 // token
	used    int64 // the weights of the holders
	balance int64
}

// model returns the specification of all kinds of locks: names with a capacity, whose holders never
// have more than that in total, whose tokens grow in the order of the grants, and whose exclusive
// holders change a balance that shared holders read.
func model() porcupine.Model {
	return porcupine.Model{
		Partition: partition,
		Init:      func() any { return []lock(nil) },
		Step: func(state, input, _ any) (bool, any) {
			names := slices.Clone(state.([]lock))
			ok := input.(operation).step(&names)
			return ok, names
		},
		Equal: func(a, b any) bool { return slices.Equal(a.([]lock), b.([]lock)) },
		DescribeOperation: func(input, _ any) string {
			return fmt.Sprintf("%+v", input)
		},
	}
}

// step changes the state, and reports whether the operation is possible in it.
func (o operation) step(names *[]lock) bool {
	for _, u := range o.uses {
		i, found := slices.BinarySearchFunc(*names, u.name, func(n lock, key string) int { return strings.Compare(n.name, key) })
		if !found {
			*names = slices.Insert(*names, i, lock{name: u.name})
		}
		n := &(*names)[i]
		ok := false
		switch o.verb {
		case acquired:
			ok = o.token > n.last && n.used+u.weight <= u.capacity
			n.last, n.used = o.token, n.used+u.weight
		case ended:
			ok = n.used >= u.weight
			n.used -= u.weight
		case lessened:
			ok = n.used == u.capacity
			n.used = 1
		case raisedTo:
			ok = o.token > n.last && n.used == 1
			n.last, n.used = o.token, u.capacity
		case wrote:
			// The guard lets a write through whose lease has ended meanwhile, but no later grant.
			ok = o.token == n.last && n.balance == o.value
			n.balance++
		case incremented:
			ok = true
			n.balance++
		case read:
			ok = n.balance == o.value
		}
		if !ok {
			return false
		}
	}
	return true
}

// partition separates operations that share no name.
func partition(history []porcupine.Operation) [][]porcupine.Operation {
	group := map[string]string{} // name → another name of its group, or itself
	var root func(string) string
	root = func(n string) string {
		if next, known := group[n]; known && next != n {
			return root(next)
		}
		return n
	}
	for _, o := range history {
		for _, u := range o.Input.(operation).uses {
			group[root(u.name)] = root(o.Input.(operation).uses[0].name)
		}
	}
	parts := map[string][]porcupine.Operation{}
	for _, o := range history {
		at := root(o.Input.(operation).uses[0].name)
		parts[at] = append(parts[at], o)
	}
	var all [][]porcupine.Operation
	for _, p := range parts {
		all = append(all, p)
	}
	return all
}

// TestModel: the checker accepts a correct history of each kind, and finds the error in each other
// one.
func TestModel(t *testing.T) {
	t.Parallel()
	lease := []use{{"l", 1, 1}}
	permits := func(weight int64) []use { return []use{{"s", weight, 3}} }
	reader, writer := []use{{"r", 1, 1 << 30}}, []use{{"r", 1 << 30, 1 << 30}}
	both := []use{{"l", 1, 1}, {"m", 1, 1}}
	at := func(call, ret int64, v verb, token int64, uses []use, value ...int64) porcupine.Operation {
		return porcupine.Operation{Input: operation{v, token, uses, append(value, 0)[0]}, Call: call, Return: ret}
	}
	for what, tc := range map[string]struct {
		history []porcupine.Operation
		want    porcupine.CheckResult
	}{
		"one after the other": {[]porcupine.Operation{
			at(0, 1, acquired, 1, lease), at(2, 3, wrote, 1, lease, 0), at(4, 5, ended, 1, lease), at(4, 6, acquired, 2, lease), at(7, 8, wrote, 2, lease, 1),
		}, porcupine.Ok},
		"two holders": {[]porcupine.Operation{
			at(0, 1, acquired, 1, lease), at(2, 3, acquired, 2, lease), at(4, 5, ended, 1, lease),
		}, porcupine.Illegal},
		"a repeated token": {[]porcupine.Operation{
			at(0, 1, acquired, 1, lease), at(2, 3, ended, 1, lease), at(4, 5, acquired, 1, lease),
		}, porcupine.Illegal},
		"a smaller token": {[]porcupine.Operation{
			at(0, 1, acquired, 2, lease), at(2, 3, ended, 2, lease), at(4, 5, acquired, 1, lease),
		}, porcupine.Illegal},
		"a stale write": {[]porcupine.Operation{
			at(0, 1, acquired, 1, lease), at(2, 3, ended, 1, lease), at(4, 5, acquired, 2, lease), at(6, 7, wrote, 1, lease, 0),
		}, porcupine.Illegal},
		"a write that ends late": {[]porcupine.Operation{
			at(0, 1, acquired, 1, lease), at(2, 9, wrote, 1, lease, 0), at(2, 3, ended, 1, lease), at(4, 5, acquired, 2, lease),
		}, porcupine.Ok},
		"a lost update": {[]porcupine.Operation{
			at(0, 1, acquired, 1, lease), at(2, 3, wrote, 1, lease, 0), at(4, 5, wrote, 1, lease, 0),
		}, porcupine.Illegal},
		"permits": {[]porcupine.Operation{
			at(0, 1, acquired, 1, permits(2)), at(2, 3, acquired, 2, permits(1)), at(4, 7, ended, 1, permits(2)), at(5, 6, acquired, 3, permits(2)),
		}, porcupine.Ok},
		"too many permits": {[]porcupine.Operation{
			at(0, 1, acquired, 1, permits(2)), at(2, 3, acquired, 2, permits(2)),
		}, porcupine.Illegal},
		"readers": {[]porcupine.Operation{
			at(0, 1, acquired, 1, reader), at(2, 3, acquired, 2, reader), at(4, 5, read, 2, reader, 0),
		}, porcupine.Ok},
		"a reader beside a writer": {[]porcupine.Operation{
			at(0, 1, acquired, 1, writer), at(2, 3, acquired, 2, reader),
		}, porcupine.Illegal},
		"a writer that becomes a reader": {[]porcupine.Operation{
			at(0, 1, acquired, 1, writer), at(2, 5, lessened, 1, writer), at(3, 4, acquired, 2, reader), at(6, 7, ended, 1, reader), at(8, 9, raisedTo, 3, writer),
		}, porcupine.Ok},
		"a reader that becomes the writer beside another": {[]porcupine.Operation{
			at(0, 1, acquired, 1, reader), at(2, 3, acquired, 2, reader), at(4, 5, raisedTo, 3, writer),
		}, porcupine.Illegal},
		"a reader that becomes the writer with its token": {[]porcupine.Operation{
			at(0, 1, acquired, 1, reader), at(4, 5, raisedTo, 1, writer),
		}, porcupine.Illegal},
		"an old value": {[]porcupine.Operation{
			at(0, 1, acquired, 1, writer), at(2, 3, wrote, 1, writer, 0), at(4, 5, ended, 1, writer), at(6, 7, acquired, 2, reader), at(8, 9, read, 2, reader, 0),
		}, porcupine.Illegal},
		"several names": {[]porcupine.Operation{
			at(0, 1, acquired, 1, lease), at(2, 5, ended, 1, lease), at(3, 4, acquired, 2, both),
		}, porcupine.Ok},
		"one of several names is held": {[]porcupine.Operation{
			at(0, 1, acquired, 1, lease), at(2, 3, acquired, 2, both),
		}, porcupine.Illegal},
	} {
		if got := porcupine.CheckOperations(model(), tc.history); got != (tc.want == porcupine.Ok) {
			t.Errorf("%s: accepted: %v", what, got)
		}
	}
}

// TestFalseLeadersAreFound: an observer sees an older leader than before, or another one's payload.
func TestFalseLeadersAreFound(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		seen []record
		want int
	}{
		"right":         {[]record{{Token: 4, Op: "a"}, {Token: 4, Op: "a again"}, {Token: 7, Op: "b"}}, 0},
		"back":          {[]record{{Token: 7, Op: "b"}, {Token: 4, Op: "a"}}, 1},
		"other payload": {[]record{{Token: 7, Op: "a"}}, 1},
	} {
		a := &arena{t: t, records: []record{{What: granted, Token: 4, Op: "a"}, {What: granted, Token: 7, Op: "b"}}}
		for _, r := range c.seen {
			r.What = observed
			a.records = append(a.records, r)
		}
		var v verdict
		a.judgeRecords(&v, nil, 0)
		if v.violations.falseLeaders != c.want || v.observed != len(c.seen) {
			t.Errorf("%s: %d of %d", name, v.violations.falseLeaders, v.observed)
		}
	}
}
