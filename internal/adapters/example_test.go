package adapters_test

import (
	"context"
	"database/sql"
	"errors"
	"log"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/pressly/goose/v3"
	"github.com/robfig/cron/v3"

	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/gooselock"
	"github.com/pglock/pglock-go/pglock/leader"
	"github.com/pglock/pglock-go/pglock/schedule"
	"github.com/pglock/pglock-go/pglock/schedule/gocronlock"
)

func report(context.Context, *pglock.Lease) error { return nil }

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}

// taskExample is the code in the doc.go of gocronlock.
func taskExample(client *pglock.Client) error {
	job, err := schedule.New(client, "report")
	if err != nil {
		return err
	}
	fiveMinutes, err := cron.ParseStandard("*/5 * * * *") // of robfig/cron/v3, as gocron does
	if err != nil {
		return err
	}
	task, err := gocronlock.Task(job, fiveMinutes, report)
	if err != nil {
		return err
	}
	s, err := gocron.NewScheduler()
	if err != nil {
		return err
	}
	_, err = s.NewJob(gocron.CronJob("*/5 * * * *", false), gocron.NewTask(task))
	if err != nil {
		return err
	}
	s.Start()
	return nil
}

var _ = taskExample // compiled, and compared with the text

// TestDocumentationShowsTheExamples: the code in the doc.go of gocronlock is that of this file, which
// the compiler checks.
func TestDocumentationShowsTheExamples(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	for _, name := range []string{
		"example_test.go", "../../pglock/schedule/gocronlock/doc.go",
	} {
		source, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		text.Write(source)
	}
	between := func(begin, end string) string {
		_, rest, _ := strings.Cut(text.String(), begin)
		body, _, found := strings.Cut(rest, end)
		if !found {
			t.Errorf("no %q", begin)
		}
		return body
	}
	for what, code := range map[string]string{
		"taskExample": comment(between("func taskExample(client *pglock.Client) error {\n", "\treturn nil\n}\n")),
		"the elector": comment("\t" + strings.ReplaceAll("type elector "+between("\ntype elector ", "\n}\n")+"\n}", "\n", "\n\t")),
	} {
		if !strings.Contains(text.String(), strings.ReplaceAll(code, "//\t\n", "//\n")) {
			t.Errorf("no doc.go shows %s:\n%s", what, code)
		}
	}
}

// comment returns the code as a comment.
func comment(code string) string {
	return "//" + strings.ReplaceAll(strings.TrimSuffix(code, "\n"), "\n", "\n//") + "\n"
}

// elector is the gocron.Elector that the doc.go of gocronlock shows.
type elector struct{ *leader.Election }

func (e elector) IsLeader(context.Context) error {
	if _, leads := e.Term(); !leads {
		return errors.New("another scheduler leads")
	}
	return nil
}

var _ gocron.Elector = elector{}

// goose under an advisory lock of the connection that migrates.
func Example_goose() {
	var db *sql.DB
	ctx := context.Background()

	locker := must(gooselock.NewSessionLocker("migrations", gooselock.WithTimeout(10*time.Minute)))
	provider := must(goose.NewProvider(goose.DialectPostgres, db, os.DirFS("migrations"), goose.WithSessionLocker(locker)))
	must(provider.Up(ctx))
}

// goose under a lease, for databases behind a pooler in transaction mode.
func Example_gooseBehindAPooler() {
	var db *sql.DB
	var client *pglock.Client
	ctx := context.Background()

	locker := must(gooselock.NewLocker(client, "migrations"))
	provider := must(goose.NewProvider(goose.DialectPostgres, db, os.DirFS("migrations"), goose.WithLocker(locker)))
	ctx, stop := locker.StopOnLoss(ctx)
	defer stop()
	must(provider.Up(ctx))
}
