// Package leasetable is the table of leases: a method of a [Table] sends one statement of the lease
// protocol, or a second one if the first can't decide. The files in sql say why each statement is
// safe. Any connection of pgx can be the [Sender], if its session is at READ COMMITTED and has the
// [Settings]. Call [Table.LiftTokens] on a new connection, which may lead to another server.
//
// Errors are those of the Sender. If an answer is lost, the statement may have been applied: repeat
// it, Acquire with the same ID, until there is an answer.
//
// The package is for those who build a client of their own, without package pglock. Its statements
// stay compatible with the tables, as the other packages do; its Go names may change in a minor release.
package leasetable

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
)

// Table is the table of leases, as safe for concurrent use as its Sender.
type Table struct {
	sender Sender
	grants grantObserver // the Sender, or nil
	schema string
	sql    map[string]string // by name: see statements
}

// New returns the Table of a schema, whose statements s sends.
func New(schema string, s Sender) *Table {
	grants, _ := s.(grantObserver)
	return &Table{s, grants, schema, statements(schema)}
}

// run sends a statement that grants nothing.
func (t *Table) run(ctx context.Context, st Statement) error {
	_, err := t.sender.Send(ctx, st)
	return err
}

// Sender sends a statement, reads the answer with Statement.Read, and returns the time just before
// it sent the attempt that was answered. One with a method ObserveGrant(fencing.Fence) is told of
// each durable grant.
type Sender interface {
	Send(ctx context.Context, st Statement) (sent time.Time, err error)
}

type grantObserver interface{ ObserveGrant(grant fencing.Fence) }

// Statement is a statement of the protocol, and what a Sender may do with it.
type Statement struct {
	SQL   string
	Args  []any
	Begin func()               // forgets the rows of an attempt that failed half-way; may be nil
	Row   func(pgx.Rows) error // scans one row; may be nil

	Wakes    bool // its last argument is true, and with false it notifies nobody, which the server may refuse
	Tries    int  // how often it may be sent while connections fail; 0: once
	Reserved bool // it is a renewal: it may use a connection that is kept for renewals

	Watch func(sent time.Time) (stop func() bool) // to be called just before it is sent, and stop after the answer; may be nil
}

// Read reads the answer to one attempt, the result of Query of pgx.
func (st Statement) Read(rows pgx.Rows) error {
	defer rows.Close()
	if st.Begin != nil {
		st.Begin()
	}
	for rows.Next() {
		if st.Row == nil {
			continue
		}
		if err := st.Row(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}
