// Package batch coalesces operations into batches, which a few workers send.
//
// While all workers are busy, more operations gather and share the next batch. There is no timer,
// so a lone operation finds an idle worker, waits for nothing, and is a batch of one.
//
//	Submit ──▶ queue ── a worker is idle, or may start ──▶ send(batch of one)
//	             │
//	             └───── all workers are busy ──▶ gathers ──▶ send(batch), when one is done
//
// While nothing is in progress, a caller may also send its operation on its own goroutine, between
// BeginInline and EndInline, because waking a worker and being woken by it takes longer than all
// other work of a client for a statement.
package batch

import "sync"

// eagerWorkers is the number of busy workers beyond which another one pays off only for half a
// batch.
const eagerWorkers = 2

// Dispatcher has the workers for some queues. It is safe for concurrent use.
type Dispatcher struct {
	workers int           // at most
	size    int           // of a batch, at most
	wake    chan struct{} // buffer of workers: one signal for each idle worker that was woken
	quit    chan struct{}
	running sync.WaitGroup

	mu      sync.Mutex // guards the fields below, and the operations in the queues
	queues  []queue
	last    int // index of the queue that was served last
	pending int // operations in all queues
	started int // workers
	idle    int // workers without work that have not been woken
	inline  int // operations on their callers' goroutines
}

type queue interface {
	// len returns the number of operations. The caller holds the Dispatcher's mu.
	len() int

	// sendBatch removes the next batch, unlocks the Dispatcher's mu, and sends the batch.
	sendBatch()
}

// New returns a Dispatcher that sends up to size operations in a batch, with up to that many
// workers, each a goroutine that is started on demand and lives until Stop.
func New(workers, size int) *Dispatcher {
	return &Dispatcher{workers: workers, size: size, wake: make(chan struct{}, workers), quit: make(chan struct{}), last: -1}
}

// Queue holds the operations of one kind, which are sent in the order in which they were submitted.
type Queue[T any] struct {
	dispatcher *Dispatcher
	send       func(batch []T)
	ops        []T // oldest first
}

// NewQueue adds a queue to d, before the first operation of any queue is submitted. If several
// queues have operations, the workers serve them in alternation. send sends a batch, which is never
// empty.
func NewQueue[T any](d *Dispatcher, send func(batch []T)) *Queue[T] {
	q := &Queue[T]{dispatcher: d, send: send}
	d.queues = append(d.queues, q)
	return q
}

// Submit adds an operation without waiting, because a worker sends it.
func (q *Queue[T]) Submit(op T) {
	d := q.dispatcher
	d.mu.Lock()
	defer d.mu.Unlock()
	q.ops = append(q.ops, op)
	d.pending++
	d.startWorker()
}

func (q *Queue[T]) len() int { return len(q.ops) }

func (q *Queue[T]) sendBatch() {
	n := min(len(q.ops), q.dispatcher.size)
	batch := q.ops[:n:n]
	q.ops = q.ops[n:]
	q.dispatcher.pending -= n
	q.dispatcher.mu.Unlock()
	q.send(batch)
}

// Pending returns the number of operations that wait for a worker.
func (d *Dispatcher) Pending() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.pending
}

// BeginInline reports whether the caller may send an operation itself, because nothing is in
// progress. If it returns true, the caller must call EndInline afterwards.
func (d *Dispatcher) BeginInline() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pending > 0 || d.busy() > 0 {
		return false
	}
	d.inline++
	return true
}

// EndInline ends an operation that its caller has sent, and lets a worker send those that gathered
// behind it.
func (d *Dispatcher) EndInline() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.inline--
	if d.pending > 0 {
		d.startWorker()
	}
}

// Stop ends the workers and waits for them. It must be called once, after the last operation has
// been submitted and sent.
func (d *Dispatcher) Stop() {
	close(d.quit)
	d.running.Wait()
}

// busy returns the number of batches and inline operations in progress, to a caller that holds mu.
func (d *Dispatcher) busy() int { return d.started - d.idle + d.inline }

// startWorker wakes or starts a worker if the limits allow it, for a caller that holds mu.
func (d *Dispatcher) startWorker() {
	if d.busy() >= eagerWorkers && d.pending < d.size/2 {
		return
	}
	switch {
	case d.busy() == d.workers: // the next one to finish sees the operations that have gathered
	case d.idle > 0:
		d.idle--
		d.wake <- struct{}{} // does not block, because only idle workers are woken
	case d.started < d.workers:
		d.started++
		d.running.Go(d.runWorker)
	}
}

// runWorker sends batches until Stop is called.
func (d *Dispatcher) runWorker() {
	for {
		if d.sendNext() {
			continue
		}
		// Both cases are ready only if Stop is called too early. If another worker has sent the
		// operation that this one was woken for, sendNext finds nothing and counts this one as idle
		// again.
		select {
		case <-d.wake:
		case <-d.quit:
			return
		}
	}
}

// sendNext sends the next batch, beginning with the queue after the one that was served last. If
// all queues are empty, it counts the worker as idle and returns false.
func (d *Dispatcher) sendNext() bool {
	d.mu.Lock()
	for i := range d.queues {
		at := (d.last + 1 + i) % len(d.queues)
		if d.queues[at].len() > 0 {
			d.last = at
			d.queues[at].sendBatch() // unlocks mu
			return true
		}
	}
	d.idle++
	d.mu.Unlock()
	return false
}
