package adapters_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/schedule"
)

var errTask = errors.New("the task failed")

func failingTask(context.Context, *pglock.Lease) error { return errTask }

// wantWarning fails the test unless want is logged at Warn, and nothing else.
func wantWarning(t *testing.T, logged <-chan slog.Record, what string, want error) {
	t.Helper()
	select {
	case r := <-logged:
		if r.Level != slog.LevelWarn || !errors.Is(locktest.Error(r), want) {
			t.Errorf("%s: logged %v", what, r)
		}
	default:
		t.Errorf("%s: nothing is logged", what)
	}
	if len(logged) != 0 {
		t.Errorf("%s: more is logged: %v", what, <-logged)
	}
}

// TestGocronTaskFailuresAreLogged: failures are logged at Warn and reported. gocron tells only event
// listeners of a task's errors.
func TestGocronTaskFailuresAreLogged(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	logged, reported := make(chan slog.Record, 10), make(chan error, 10)
	opts := []schedule.Option{schedule.WithLogger(slog.New(locktest.Records(logged))), schedule.WithReport(func(_ time.Time, err error) { reported <- err })}
	if err := newTask(t, url, failingTask, opts...)(t.Context()); !errors.Is(err, errTask) {
		t.Errorf("the task: %v", err)
	}
	wantWarning(t, logged, "a task that fails", errTask)
	if err := locktest.Receive(t, reported); !errors.Is(err, errTask) {
		t.Errorf("a task that fails: reported %v", err)
	}
	if err := newTask(t, url, failingTask, opts...)(t.Context()); err != nil || len(reported) != 0 {
		t.Errorf("the tick again: %v, %d reports", err, len(reported))
	}
	if r := locktest.Receive(t, logged); r.Level != slog.LevelDebug || !errors.Is(locktest.Error(r), schedule.ErrDone) {
		t.Errorf("the tick again: logged %v", r)
	}
}
