package adapters_test

import (
	"context"
	"database/sql"
	"errors"
	"log"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
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
	"github.com/pglock/pglock-go/pglock/schedule/cronlock"
	"github.com/pglock/pglock-go/pglock/schedule/gocronlock"
)

func report(context.Context, *pglock.Lease) error { return nil }

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}

// The functions with the suffix Example are the code in the doc.go of gocronlock and cronlock:
// TestDocumentationShowsTheExamples compares them.

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

func funcExample(ctx context.Context, client *pglock.Client) error {
	job, err := schedule.New(client, "report")
	if err != nil {
		return err
	}
	fiveMinutes, err := cron.ParseStandard("*/5 * * * *")
	if err != nil {
		return err
	}
	run, err := cronlock.Func(ctx, job, fiveMinutes, report)
	if err != nil {
		return err
	}
	c := cron.New()
	c.Schedule(fiveMinutes, cron.FuncJob(run))
	c.Start()
	return nil
}

func wrapperExample(ctx context.Context, job *schedule.Job, fiveMinutes cron.Schedule, existing cron.Job) error {
	once, err := cronlock.Wrapper[cron.Job](ctx, job, fiveMinutes)
	if err != nil {
		return err
	}
	c := cron.New()
	c.Schedule(fiveMinutes, cron.NewChain(cron.Recover(cron.DefaultLogger), once).Then(existing))
	c.Start()
	return nil
}

// examples has the functions above by the package whose doc.go shows them. It also keeps them from
// being reported as unused.
var examples = map[string][]any{
	"gocronlock": {taskExample},
	"cronlock":   {funcExample, wrapperExample},
}

// TestDocumentationShowsTheExamples: the code in the doc.go of gocronlock and cronlock is the code
// of the functions above, which the compiler checks.
func TestDocumentationShowsTheExamples(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for name, functions := range examples {
		doc, err := os.ReadFile(filepath.Join("..", "..", "pglock", "schedule", name, "doc.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range functions {
			full := runtime.FuncForPC(reflect.ValueOf(f).Pointer()).Name()
			function := full[strings.LastIndex(full, ".")+1:]
			_, rest, _ := strings.Cut(string(source), "func "+function+"(")
			_, rest, _ = strings.Cut(rest, "{\n")
			body, _, found := strings.Cut(rest, "\treturn nil\n}\n")
			if code := comment(body); !found || !strings.Contains(string(doc), code) {
				t.Errorf("the doc.go of %s does not show %s:\n%s", name, function, code)
			}
		}
	}
	_, rest, _ := strings.Cut(string(source), "\ntype elector ")
	body, _, found := strings.Cut(rest, "\n}\n")
	code := comment("\t" + strings.ReplaceAll("type elector "+body+"\n}", "\n", "\n\t"))
	doc, err := os.ReadFile(filepath.Join("..", "..", "pglock", "schedule", "gocronlock", "doc.go"))
	if err != nil || !found || !strings.Contains(string(doc), strings.ReplaceAll(code, "//\t\n", "//\n")) {
		t.Errorf("the doc.go of gocronlock does not show the elector, %v:\n%s", err, code)
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
