// Package leasetable is the table of leases: each method of a [Table] is one operation of the lease
// protocol, and sends one statement, or a second one if the first could not decide. The files in sql and the
// migrations say why each statement is safe.
//
// A [Sender] sends the statements: any connection of pgx can be one, as the example shows. Its session
// must be at READ COMMITTED, and nobody else may create functions in a schema of its search_path. A
// statement is sent once unless its Tries says more.
//
// Errors are those of the Sender, and so those of pgx. [Transient], [MaybeApplied], [ConnectionFailed] and
// [RowLocked] say what they mean for a statement.
package leasetable

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
)

// Table is the table of leases in a schema. It is safe for concurrent use if its Sender is.
type Table struct {
	sender Sender
	grants GrantObserver // the Sender, or nil
	schema string
	sql    map[string]string // by name: see statements
}

// New returns the Table of a schema, whose statements s sends.
func New(schema string, s Sender) *Table {
	grants, _ := s.(GrantObserver)
	return &Table{s, grants, schema, statements(schema)}
}

// Sender sends a statement on a connection, and reads the answer with Statement.Read. It returns the
// time just before it sent the attempt that was answered: what the server promises counts from there.
type Sender interface {
	Send(ctx context.Context, st Statement) (sent time.Time, err error)
}

// GrantObserver is a Sender that is told of each grant, when the server has made it durable.
type GrantObserver interface {
	ObserveGrant(grant fencing.Fence)
}

// Statement is a statement of the protocol with its arguments, and what its Sender may do with it.
type Statement struct {
	SQL   string
	Args  []any
	Begin func()               // forgets the rows of an attempt that failed half-way; may be nil
	Row   func(pgx.Rows) error // scans one row; may be nil

	Wakes    bool // its last argument is true, and with false it notifies nobody, which the server may refuse
	Tries    int  // how often it may be sent while connections fail; 0: once
	Reserved bool // it is a renewal: it may use a connection that is kept for renewals

	// Watch, if not nil, is to be called just before the statement is sent, and stop after the answer.
	Watch func(sent time.Time) (stop func() bool)
}

// Read reads the answer to one attempt, which is the result of Query of a pgx connection.
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
