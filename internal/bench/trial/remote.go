package trial

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"
)

// Assignment names the subject that a process serves, and says at which scale.
type Assignment struct {
	Row, Subject string
	Scale        Scale
}

// request asks a process for a turn, or without a length for the figures.
type request struct{ Turn time.Duration }

// reply answers the assignment and each request.
type reply struct {
	Error   string
	Figures []Figure
}

// Remote is the meter of a subject that another process serves.
type Remote struct {
	in  *json.Encoder
	out *json.Decoder
}

// NewRemote gives a process its assignment. It returns when the subject is open there.
func NewRemote(a Assignment, stdin io.Writer, stdout io.Reader) (*Remote, error) {
	r := &Remote{in: json.NewEncoder(stdin), out: json.NewDecoder(bufio.NewReader(stdout))}
	_, err := r.send(a)
	return r, err
}

func (r *Remote) send(question any) (answer reply, err error) {
	if err = r.in.Encode(question); err == nil {
		err = r.out.Decode(&answer)
	}
	if err == nil && answer.Error != "" {
		err = errors.New(answer.Error)
	}
	if err != nil {
		err = fmt.Errorf("trial: the other process: %w", err)
	}
	return answer, err
}

// Turn lets the other process take a turn.
func (r *Remote) Turn(_ context.Context, d time.Duration) error {
	_, err := r.send(request{d})
	return err
}

// Figures returns the figures of the other process. A failure becomes a figure that is no number, which
// ends the trial.
func (r *Remote) Figures() []Figure {
	answer, err := r.send(request{})
	if err != nil {
		return []Figure{{Name: err.Error(), Value: math.NaN()}}
	}
	return answer.Figures
}

// ErrAbandoned is returned by Serve if stdin ends in the middle of something. The process must end then,
// because that goes on.
var ErrAbandoned = errors.New("trial: the process that asked has ended")

// Serve reads an assignment and then requests, and answers them until stdin ends.
func Serve(ctx context.Context, rows []Row, stdin io.Reader, stdout io.Writer) (err error) {
	in, out := json.NewDecoder(stdin), json.NewEncoder(stdout)
	var a Assignment
	if err := in.Decode(&a); err != nil {
		return err
	}
	requests := make(chan request)
	go func() {
		defer close(requests)
		for {
			var r request
			if in.Decode(&r) != nil {
				return
			}
			requests <- r
		}
	}()
	// answer calls what and sends its result. Nothing is asked before that, so whatever comes from
	// requests earlier is their end.
	answer := func(what func() ([]Figure, error)) error {
		done := make(chan reply, 1)
		go func() {
			figures, err := what()
			r := reply{Figures: figures}
			if err != nil {
				r.Error = err.Error()
			}
			done <- r
		}()
		select {
		case r := <-done:
			return out.Encode(r)
		case <-requests:
			return ErrAbandoned
		}
	}
	scope := &Scope{Scale: a.Scale}
	var meter Meter
	err = answer(func() (_ []Figure, err error) {
		meter, err = a.open(ctx, rows, scope)
		return nil, err
	})
	for err == nil {
		r, more := <-requests
		if !more {
			break
		}
		err = answer(func() ([]Figure, error) {
			if r.Turn == 0 {
				return meter.Figures(), nil
			}
			return nil, meter.Turn(ctx, r.Turn)
		})
	}
	if errors.Is(err, ErrAbandoned) {
		return err
	}
	return errors.Join(err, scope.close())
}

// open prepares the row and opens the subject.
func (a Assignment) open(ctx context.Context, rows []Row, scope *Scope) (Meter, error) {
	i := slices.IndexFunc(rows, func(r Row) bool { return r.Number == a.Row })
	if i < 0 {
		return nil, fmt.Errorf("trial: no row %q", a.Row)
	}
	j := slices.IndexFunc(rows[i].Subjects, func(s Subject) bool { return s.Name == a.Subject })
	if j < 0 {
		return nil, fmt.Errorf("trial: %s has no subject %q", a.Row, a.Subject)
	}
	if rows[i].Prepare != nil {
		if err := rows[i].Prepare(ctx, scope); err != nil {
			return nil, err
		}
	}
	return rows[i].Subjects[j].Open(ctx, scope)
}
