package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// kind is what a fault does to a message, or to the world.
type kind string

// Faults of messages. A notification can be lost, slow or doubled.
const (
	lost       kind = "is lost"
	late       kind = "is applied late, when its connection has ended"
	unanswered kind = "is applied, and its answer is lost"
	twice      kind = "arrives twice"
	slow       kind = "is slow"
	refused    kind = "is refused"

	leaves kind = "is answered, and a caller that waits for the same name leaves"
	stalls kind = "is applied, and its process rests"
)

// Faults of the world.
const (
	rests    kind = "rests"              // no message of the process moves, as if it or its network stood still
	crashes  kind = "crashes"            // and starts again
	cut      kind = "loses connections"  // all of them
	hangs    kind = "hangs"              // the server answers nobody
	restarts kind = "restarts"           // the server, with an empty queue
	fails    kind = "fails over"         // to a standby, which has all grants, or not the last ones
	steps    kind = "has another clock"  // the server's jumps
	full     kind = "has no connections" // the server refuses all statements
)

// Fault is a fault of a run.
type Fault struct {
	Kind kind
	Node int    // of the process: which life of all, or for a fault of the world which process; -1: the server
	Who  string // the process, for people

	// Of a message: the statement, what it is about, and how many such messages of the process came
	// before. Numbers of all messages together would depend on the order of what happens at once.
	Op    string
	About string
	Nth   int

	// Of the world.
	At   time.Duration // since the start
	For  time.Duration
	Step time.Duration // of the clock; of a failover: what the standby has not received
}

func (f Fault) world() bool { return f.Op == "" }

// key is what a fault strikes.
func (f Fault) key() Fault { return Fault{Node: f.Node, Op: f.Op, About: f.About, Nth: f.Nth} }

func (f Fault) String() string {
	if !f.world() {
		return fmt.Sprintf("%s %q (%d) of %s %s", f.Op, f.About, f.Nth, f.Who, f.Kind)
	}
	who := "the server"
	if f.Node >= 0 {
		who = f.Who
	}
	text := fmt.Sprintf("at %v %s %s", f.At, who, f.Kind)
	if f.For > 0 {
		text += fmt.Sprintf(" for %v", f.For)
	}
	if f.Step != 0 {
		text += fmt.Sprintf(" (%v)", f.Step)
	}
	return text
}

// processes is among how many a fault chooses its process, modulo those that there are.
const processes = 60

// Times of a run.
const (
	Faulty = 40 * time.Second // the first part, which has faults
	Length = 60 * time.Second // until the work is told to end
)

// plan is which faults a run has.
type plan struct {
	seed  uint64
	world []Fault
	rate  float64         // of messages with a fault
	kinds []kind          // of these
	deaf  float64         // of notifications with a fault
	only  map[Fault]Fault // by key; nil: as the rates say
}

// newPlan draws the plan of a seed.
func newPlan(seed uint64) plan {
	r := rand.New(rand.NewPCG(seed, 0))
	p := plan{seed: seed, rate: []float64{0, 0.002, 0.01, 0.05}[r.IntN(4)], deaf: []float64{0, 0.02, 0.3, 1}[r.IntN(4)]}
	p.kinds = []kind{lost, late, unanswered, unanswered, twice, slow, slow, refused, leaves, stalls}
	kinds := []kind{rests, crashes, cut, hangs, restarts, fails, steps, full}
	// A world with few kinds of faults shows what others would hide, or excuse.
	if r.IntN(2) == 0 {
		p.kinds = some(r, p.kinds)
	}
	switch r.IntN(4) {
	case 0, 1:
		kinds = some(r, kinds)
	case 2: // in a mild world, nothing excuses a delay
		p.kinds, kinds = []kind{refused, leaves, twice}, nil
	}
	every := []time.Duration{2 * time.Second, 6 * time.Second, 15 * time.Second, time.Hour}[r.IntN(4)]
	if r.IntN(4) > 0 { // few worlds have such clocks, because they excuse much
		kinds = slices.DeleteFunc(kinds, func(k kind) bool { return k == steps })
	}
	for at := between(r, 0, every); at < Faulty; at += between(r, every/4, 2*every) {
		if f := drawFault(r, at); slices.Contains(kinds, f.Kind) {
			p.world = append(p.world, f)
		}
	}
	return p
}

// some returns one to three of all.
func some(r *rand.Rand, all []kind) []kind {
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:1+r.IntN(3)]
}

func drawFault(r *rand.Rand, at time.Duration) Fault {
	f := Fault{At: at.Truncate(time.Microsecond), Node: -1}
	switch n := r.IntN(20); {
	case n < 5:
		f.Kind, f.Node, f.For = rests, r.IntN(processes), between(r, 10*time.Millisecond, 8*time.Second)
	case n < 9:
		f.Kind, f.Node, f.For = crashes, r.IntN(processes), between(r, 0, 5*time.Second)
	case n < 12:
		f.Kind, f.Node = cut, r.IntN(processes)
	case n < 14:
		f.Kind, f.For = hangs, between(r, 10*time.Millisecond, 6*time.Second)
	case n < 16:
		f.Kind, f.For = restarts, between(r, 0, 4*time.Second)
	case n < 18:
		f.Kind, f.For = fails, between(r, 0, 4*time.Second)
		if r.IntN(2) == 0 {
			f.Step = between(r, 0, 200*time.Millisecond)
		}
	case n < 19:
		f.Kind, f.Step = steps, between(r, -5*time.Second, 5*time.Second)
	default:
		f.Kind, f.For = full, between(r, 0, 3*time.Second)
	}
	return f
}

// between draws a duration, small ones as often as large ones.
func between(r *rand.Rand, least, most time.Duration) time.Duration {
	d := most - least
	for range r.IntN(4) {
		d /= 2 + time.Duration(r.IntN(4))
	}
	return (least + time.Duration(r.Int64N(int64(d)+1))).Truncate(time.Microsecond)
}

// fate is what happens to a statement, or to a notification.
type fate struct {
	there, back time.Duration
	fault       kind
	extra       time.Duration // how much later than usual it is applied, or applied again
	patience    time.Duration // until the connection ends without an answer
	arrives     bool          // it is on its way if its caller gives up
	caller      int           // which one leaves
	code        int
}

// draw returns the fate of a message, by a source that its key has seeded.
func (p *plan) draw(r *rand.Rand, f Fault, now time.Duration) fate {
	m := fate{
		there: latency(r), back: latency(r), extra: between(r, 0, []time.Duration{time.Second, Late}[r.IntN(2)]), patience: between(r, 0, 5*time.Second), arrives: r.IntN(2) == 0, code: r.IntN(len(refusals)), caller: r.IntN(16),
	}
	rate, kinds := p.rate, p.kinds
	switch f.Op {
	case "handoff", "upgrade", "leave_queue", "revoke":
		rate *= 5 // they are few
	case notification:
		m.there *= time.Duration(1 + r.IntN(20)) // it is often behind what the process does meanwhile
		rate, kinds = p.deaf, []kind{lost, lost, slow, twice}
	}
	drawn, k := r.Float64() < rate, kinds[r.IntN(len(kinds))]
	if p.only != nil {
		var planned Fault
		planned, drawn = p.only[f.key()]
		k = planned.Kind
	}
	if drawn && now < Faulty {
		m.fault = k
		if f.Op == notification && k == slow {
			m.there += m.extra
		}
	}
	return m
}

// notification is the Op of a notification, whose fault can be lost, slow or twice.
const notification = "notification"

// call is what messages of a process have in common that are numbered together.
type call struct{ op, about string }

// calls are those messages.
type calls struct {
	n    int
	hash uint64 // of what they have in common
}

// draw draws the fate of the next message of a process, whose number decides it. wire is the
// connection.
func (n *Node) draw(op, about string) (drawn fate, wire chan struct{}) {
	w := n.world
	w.mu.Lock()
	defer w.mu.Unlock()
	c := n.calls[call{op, about}]
	if c == nil {
		c = &calls{hash: hash(14695981039346656037, strconv.Itoa(n.id)+" "+op+" "+about+" ")}
		n.calls[call{op, about}] = c
	}
	c.n++
	f := Fault{Node: n.id, Op: op, About: about, Nth: c.n}
	w.source.Seed(w.plan.seed, hash(c.hash, strconv.Itoa(c.n)))
	drawn = w.plan.draw(w.rand, f, w.Now())
	if drawn.fault != "" {
		f.Kind, f.Who = drawn.fault, n.name
		n.suffers(op, about, drawn.fault)
		w.struck(f)
	}
	return drawn, n.wire
}

// hash is FNV-1a of a text, which continues another hash.
func hash(h uint64, text string) uint64 {
	for i := range len(text) {
		h = (h ^ uint64(text[i])) * 1099511628211
	}
	return h
}

// suffers notes the fault of a message. One that comes twice, or a refusal alone, delays nothing.
func (n *Node) suffers(op, about string, k kind) {
	now := time.Now()
	if k != twice && k != leaves {
		n.hindered[about] = now
	}
	switch {
	case k == twice, k == leaves:
	case k == refused && op != "upgrade" && now.Sub(n.refused[op]) > 5*time.Second: // an upgrade ends the reader then
		n.refused[op] = now
	default:
		n.struck = later(n.struck, now)
	}
}

func latency(r *rand.Rand) time.Duration {
	d := 50*time.Microsecond + time.Duration(r.Int64N(int64(time.Millisecond)))
	if r.IntN(20) == 0 {
		d *= time.Duration(1 + r.IntN(30))
	}
	return d
}

// refusals are errors of statements that were not applied.
var refusals = []string{"40001", "57P01", "55P03", "53300"}

func (m fate) refusal() error {
	return &pgconn.PgError{Severity: "ERROR", Code: refusals[m.code], Message: "refused by the plan of the world"}
}

// without returns a plan with these faults only.
func (p plan) with(faults []Fault) plan {
	p.world, p.only = nil, map[Fault]Fault{}
	for _, f := range faults {
		if f.world() {
			p.world = append(p.world, f)
		} else {
			p.only[f.key()] = f
		}
	}
	slices.SortFunc(p.world, func(a, b Fault) int { return int(a.At - b.At) })
	return p
}
