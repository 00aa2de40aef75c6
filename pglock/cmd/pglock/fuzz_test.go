package main

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pglock/pglock-go/pglock/internal/text"
)

// secretWord is a part of passwords in the inputs of the fuzz tests.
const secretWord = "hunter98secret"

// FuzzArguments runs a command line, one argument a line, as far as pglock does before it connects. It
// ends with a usage error, without the command to run, or at the connection string, which is invalid.
// The text is one line. It does not repeat an argument that may be a connection string.
func FuzzArguments(f *testing.F) {
	for _, line := range []string{
		"", "run", "run n -- true", "run --ttl 10s --grace 1s n -- true", "run --permits 3 --weight 2 n -- true", "run --read --write n -- x", "run --also a --also b n -- x",
		"run --label a=b --label =c n -- x", "run --tick daily@12:00 n -- x", "run --tick cron n -- x", "run --tick 1h --retry 3 --backoff 1s n -- x", "run --once-per 1h --count-failed n -- x", "run -q -- n -- x", "lead --payload p n -- x",
		"ls --json --held --prefix a", "show n --json", "release n --force --token 7 --reason r", "doctor --json",
		"migrate up --grant-user a --grant-writer b", "migrate down --yes", "migrate force 3", "migrate version", "--version", "--help", "help run", "completion bash", "__complete run ",
		"--schema pg_x ls", "--schema= ls", "--database-url postgres://me:" + secretWord + "@h/d ls", "postgres://me:" + secretWord + "@h/d", "run --postgres://me:" + secretWord + "@h/d",
		"run --ttl postgres://me:" + secretWord + "@h/d n -- x", "migrate force 99999999999999999999", "-hunter98secret", "--hunter98secret", "--=", "---", "-", "--",
		"run --busy-status=256 n -- x", "run --ttl=9223372036854775807ns --grace=9223372036854775807ns n -- x", "run --ttl -1s n -- x",
	} {
		f.Add(strings.ReplaceAll(line, " ", "\n"))
	}
	f.Fuzz(func(t *testing.T, line string) {
		args := strings.Split(line, "\n")
		root := newRoot()
		root.SetOut(io.Discard)
		root.SetErr(io.Discard)
		root.SetArgs(args)
		root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
			return cmd.Root().PersistentFlags().Set("database-url", "invalid")
		}
		err := root.Execute()
		if err == nil { // --help, version and the like
			return
		}
		if called, _, _ := root.Find(args); called != nil && ofCobra(called) {
			return
		}
		var own *failure
		text := text.OneLine(describe(err))
		switch {
		case errors.As(err, &own) && own.code != statusUsage:
			return // it names the command to run
		case own == nil && !errors.Is(err, errConnString):
			t.Fatalf("%q: %T %v", args, err, err)
		case exitStatusOf(err) != statusUsage || text == "" || strings.ContainsAny(text, "\n\r\x1b"):
			t.Fatalf("%q: status %d, %q", args, exitStatusOf(err), text)
		}
		for _, arg := range args {
			if strings.Contains(arg, secretWord) && !strings.Contains(arg, "://") {
				return // not in a connection string
			}
		}
		if strings.Contains(text, secretWord) {
			t.Fatalf("%q: shows what may be a password: %s", args, text)
		}
	})
}

// ofCobra reports whether cobra has made the command, with errors of its own.
func ofCobra(cmd *cobra.Command) bool {
	return strings.HasPrefix(cmd.CommandPath()+" ", "pglock completion ") || strings.HasPrefix(cmd.Name(), "__complete") || cmd.Name() == "help"
}

// FuzzConnString writes a password without escapes into connection strings. The error shows no part of
// it. If the string is valid, no part is in what a connection error shows: hosts, user and database.
func FuzzConnString(f *testing.F) {
	for _, middle := range []string{"", "@", "/", "?", "#", "%", "%41", ":", "@h/d?", "&sslmode=", "' host='", " ", " dbname=", "\\", "'", "=", "[", "]", "\x00", "\xff", ",", "1/", "é"} {
		for form := range uint8(6) {
			f.Add(form, middle)
		}
	}
	f.Fuzz(func(t *testing.T, form uint8, middle string) {
		password := secretWord + middle + secretWord
		text := []string{
			"postgres://me:" + password + "@127.0.0.1:1/db",
			"postgresql://127.0.0.1:1/db?user=me&password=" + password,
			"postgres://me:" + password,
			"host=127.0.0.1 port=1 user=me password=" + password + " dbname=db",
			"host=127.0.0.1 port=1 user=me password='" + password + "' dbname=db",
			"mysql://me:" + password + "@127.0.0.1/db",
		}[form%6]
		config, err := database{text, "$DATABASE_URL"}.config()
		if err != nil {
			if !errors.Is(err, errConnString) || strings.Contains(err.Error(), secretWord) {
				t.Fatalf("%q: %v", text, err)
			}
			return
		}
		// Some passwords make another valid string of it: another host is given.
		other := []string{"", "&", "@", "=", "'", ""}[form%6]
		if other != "" && strings.Contains(middle, other) {
			return
		}
		if shown := shownOnFailure(config); strings.Contains(shown, secretWord) {
			t.Fatalf("%q: a connection error shows %q", text, shown)
		}
	})
}

// shownOnFailure returns what the text of a connection error may contain.
func shownOnFailure(config *pgxpool.Config) string {
	c := config.ConnConfig
	shown := []string{c.Host, c.User, c.Database}
	for _, f := range c.Fallbacks {
		shown = append(shown, f.Host)
	}
	return strings.Join(shown, " ")
}
