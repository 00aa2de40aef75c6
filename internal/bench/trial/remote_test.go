package trial

import (
	"context"
	"errors"
	"io"
	"net"
	"net/rpc"
	"strings"
	"testing"
	"time"
)

// served serves rows and returns a row whose one subject it serves.
func served(t *testing.T, rows []Row, a Assignment) Row {
	t.Helper()
	server := rpc.NewServer()
	if err := Register(server, rows); err != nil {
		t.Fatal(err)
	}
	return Row{Number: "B0", Subjects: []Subject{{Name: "remote", Open: func(_ context.Context, s *Scope) (Meter, error) {
		ours, theirs := net.Pipe()
		go server.ServeConn(theirs)
		s.Defer(ours.Close)
		r, err := NewRemote(a, ours)
		s.Defer(r.Close)
		return r, err
	}}}}
}

func TestASubjectOfAnotherProcess(t *testing.T) {
	t.Parallel()
	closed := false
	rows := []Row{{Number: "B1"}, {
		Number: "B2",
		Prepare: func(_ context.Context, s *Scope) error {
			s.Defer(func() error { closed = true; return nil })
			return nil
		},
		Subjects: []Subject{plays("other", Floor, 0), plays("ours", Ours, 1, 2, 3)},
	}}
	o := run(t, served(t, rows, Assignment{Row: "B2", Subject: "ours"}), Scale{Rounds: 3, Turns: 2, Turn: time.Millisecond})
	if s := o.Series[0]; s.Subject != "remote" || s.Figure != "f" || s.Median != 2 || len(s.Rounds) != 3 {
		t.Errorf("%+v", s)
	}
	if !closed {
		t.Error("it was not closed")
	}
}

func TestErrorsOfAnotherProcess(t *testing.T) {
	t.Parallel()
	turn := Subject{Name: "turn", Open: func(context.Context, *Scope) (Meter, error) { return &script{err: errors.New("no luck")}, nil }}
	gone := Subject{Name: "gone", Open: func(context.Context, *Scope) (Meter, error) { return idle{}, nil }}
	for subject, want := range map[string]string{
		"turn": "no luck", "absent": "install absent", "none": `no subject "none"`, "gone": "f p50 is no number",
	} {
		row := served(t, []Row{{Number: "B0", Subjects: []Subject{turn, gone, absent("absent")}}}, Assignment{Row: "B0", Subject: subject})
		if _, err := Run(t.Context(), row, Scale{Rounds: 1, Turns: 1, Turn: time.Millisecond}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error that says %q, got %v", want, err)
		}
	}
}

// TestAnotherProcessThatHasEnded: each call returns an error.
func TestAnotherProcessThatHasEnded(t *testing.T) {
	t.Parallel()
	ours, theirs := net.Pipe()
	_ = theirs.Close()
	defer ours.Close()
	if _, err := NewRemote(Assignment{}, ours); !errors.Is(err, io.ErrClosedPipe) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, rpc.ErrShutdown) {
		t.Errorf("got %v", err)
	}
}
