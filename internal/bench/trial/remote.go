package trial

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/rpc"
	"slices"
	"time"
)

// service is the name under which a process serves subjects.
const service = "Subject"

// Assignment names the subject that a process serves, and says at which scale.
type Assignment struct {
	Row, Subject string
	Scale        Scale
}

// Remote is the meter of a subject that another process serves.
type Remote struct{ process *rpc.Client }

// NewRemote gives a process its assignment and returns when the subject is open there. The caller
// closes the connection, after Close.
func NewRemote(a Assignment, conn io.ReadWriteCloser) (*Remote, error) {
	r := &Remote{rpc.NewClient(conn)}
	return r, r.call("Open", a, new(bool))
}

func (r *Remote) call(method string, args, reply any) error {
	if err := r.process.Call(service+"."+method, args, reply); err != nil {
		return fmt.Errorf("trial: the other process: %w", err)
	}
	return nil
}

// Turn lets the other process take a turn.
func (r *Remote) Turn(_ context.Context, d time.Duration) error {
	return r.call("Turn", d, new(bool))
}

// Figures returns the figures of the other process. A failure becomes a figure that is no number, which
// ends the trial.
func (r *Remote) Figures() (figures []Figure) {
	if err := r.call("Figures", false, &figures); err != nil {
		return []Figure{{Name: err.Error(), Value: math.NaN()}}
	}
	return figures
}

// Close closes the subject in the other process.
func (r *Remote) Close() error { return r.call("Close", false, new(bool)) }

// Register lets a server serve one subject of the rows to a Remote. The process must end with the
// connection, because a turn that has begun does not.
func Register(server *rpc.Server, rows []Row) error {
	return server.RegisterName(service, &subject{rows: rows})
}

// subject is the subject that this process serves. Calls come one after the other.
type subject struct {
	rows  []Row
	scope Scope
	meter Meter
}

// Open prepares the row and opens the subject.
func (p *subject) Open(a Assignment, _ *bool) (err error) {
	ctx := context.Background()
	i := slices.IndexFunc(p.rows, func(r Row) bool { return r.Number == a.Row })
	if i < 0 {
		return fmt.Errorf("no row %q", a.Row)
	}
	row := p.rows[i]
	j := slices.IndexFunc(row.Subjects, func(s Subject) bool { return s.Name == a.Subject })
	if j < 0 {
		return fmt.Errorf("%s has no subject %q", a.Row, a.Subject)
	}
	p.scope.Scale = a.Scale
	if row.Prepare != nil {
		if err := row.Prepare(ctx, &p.scope); err != nil {
			return err
		}
	}
	p.meter, err = row.Subjects[j].Open(ctx, &p.scope)
	return err
}

func (p *subject) Turn(d time.Duration, _ *bool) error { return p.meter.Turn(context.Background(), d) }

func (p *subject) Figures(_ bool, figures *[]Figure) error {
	*figures = p.meter.Figures()
	return nil
}

func (p *subject) Close(_ bool, _ *bool) error { return p.scope.close() }
