package main

import "time"

// assignment is the first line that a worker gets.
type assignment struct {
	Name    string
	URL     string
	Schema  string
	Account string
	Locked  bool
	Guarded bool
	TTL     time.Duration
	Rounds  int // deposits, if there is no lock; otherwise it works until told to finish
}

// order is each later line.
type order struct {
	Do    string
	Where place `json:",omitempty"` // of hold
}

// What a worker is told to do.
const (
	begin  = "begin"
	hold   = "hold"   // once, at that place of its next deposit, until told to resume
	resume = "resume" // and to go on without looking at its lease again
	finish = "finish" // after the deposit under way
)

// place is a point in a deposit.
type place string

const (
	beforeWrite   place = "before the write"
	inTransaction place = "in the transaction" // after the guard, if there is one
)

// event is a line of a worker's report. The parent adds who said it and when.
type event struct {
	Kind     kind
	Token    int64     `json:",omitempty"` // of the lease at the time, 0 without one
	Balance  int64     `json:",omitempty"` // read (holding), or written (wrote)
	At       time.Time `json:",omitzero"`  // of granted: by the server's clock
	Error    string    `json:",omitempty"` // of lost and failed
	Refusals []refusal `json:",omitempty"` // of refused

	from    *member
	arrived time.Time
}

// kind says what has happened to a worker.
type kind string

const (
	ready   kind = "ready"   // it is connected
	granted kind = "granted" // it holds the lock
	holding kind = "holding" // it has come to the place where it is to be held
	wrote   kind = "wrote"   // a deposit is committed
	refused kind = "refused" // a deposit was kept from being written
	lost    kind = "lost"    // it has found its lease lost
	failed  kind = "failed"  // it gives up
	exited  kind = "exited"  // its process has ended; this one the parent says
)

// refusal is why a write was kept out.
type refusal struct {
	By    refuser
	Error string
}

// refuser is who kept a write out.
type refuser string

const (
	byLease  refuser = "lease"  // the holder's own clock: pglock.ErrLost
	byFence  refuser = "fence"  // the server, which compared tokens: fencing.ErrStale
	byServer refuser = "server" // the server, which had ended the transaction
)
