package trial

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

// served runs Serve with rows and returns a row whose one subject it serves, and the result of Serve.
func served(rows []Row, a Assignment) (Row, <-chan error) {
	done := make(chan error, 1)
	return Row{Number: "B0", Subjects: []Subject{{Name: "remote", Open: func(ctx context.Context, s *Scope) (Meter, error) {
		theirs, requests := io.Pipe()
		answers, ours := io.Pipe()
		go func() { done <- errors.Join(Serve(context.WithoutCancel(ctx), rows, theirs, ours), ours.Close()) }()
		s.Defer(requests.Close)
		return NewRemote(a, requests, answers)
	}}}}, done
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
	row, done := served(rows, Assignment{Row: "B2", Subject: "ours"})
	o := run(t, row, Scale{Rounds: 3, Turns: 2, Turn: time.Millisecond})
	if s := o.Series[0]; s.Subject != "remote" || s.Figure != "f" || s.Median != 2 || len(s.Rounds) != 3 {
		t.Errorf("%+v", s)
	}
	if err := <-done; err != nil || !closed {
		t.Errorf("at the end: %v, closed: %v", err, closed)
	}
}

func TestErrorsOfAnotherProcess(t *testing.T) {
	t.Parallel()
	turn := Subject{Name: "turn", Open: func(context.Context, *Scope) (Meter, error) { return &script{err: errors.New("no luck")}, nil }}
	for subject, want := range map[string]string{"turn": "no luck", "absent": "install absent", "none": `no subject "none"`} {
		row, done := served([]Row{{Number: "B0", Subjects: []Subject{turn, absent("absent")}}}, Assignment{Row: "B0", Subject: subject})
		if _, err := Run(t.Context(), row, Scale{Rounds: 1, Turns: 1, Turn: time.Millisecond}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error that says %q, got %v", want, err)
		}
		if err := <-done; err != nil { // the other one was told
			t.Error(err)
		}
	}
}

// stuck is a meter whose turn ends with the test.
type stuck struct{ begun, end chan struct{} }

func (m stuck) Turn(context.Context, time.Duration) error {
	close(m.begun)
	<-m.end
	return nil
}
func (stuck) Figures() []Figure { return nil }

func TestServeIsAbandonedInTheMiddleOfATurn(t *testing.T) {
	t.Parallel()
	m := stuck{make(chan struct{}), make(chan struct{})}
	defer close(m.end)
	rows := []Row{{Number: "B0", Subjects: []Subject{{Name: "stuck", Open: func(context.Context, *Scope) (Meter, error) { return m, nil }}}}}
	stdin, requests := io.Pipe()
	answers, stdout := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- Serve(t.Context(), rows, stdin, stdout) }()
	remote, err := NewRemote(Assignment{Row: "B0", Subject: "stuck"}, requests, answers)
	if err != nil {
		t.Fatal(err)
	}
	turn := make(chan error, 1)
	go func() { turn <- remote.Turn(t.Context(), time.Hour) }()
	<-m.begun
	_ = requests.Close()
	if err := <-done; !errors.Is(err, ErrAbandoned) {
		t.Errorf("got %v", err)
	}
	_ = stdout.Close()
	if err := <-turn; err == nil {
		t.Error("the turn succeeded")
	}
}
