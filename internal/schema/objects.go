package schema

import (
	"context"
	_ "embed"
	"fmt"
	"io/fs"
	"strings"

	"github.com/jackc/pgx/v5"
)

//go:embed objects.sql
var objectsSQL string

// objectsOfVersion has a line for each object of this Version, as Object.String returns it and
// TestObjects writes it.
//
//go:embed objects.txt
var objectsOfVersion string

// Object is an object of a schema: see objects.sql.
type Object struct {
	Name, Facts string // Name begins with the kind
	Signature   string // of a function that PUBLIC may execute
	Body        string // of a function
}

// String returns the line of objects.txt. It has no body, because the migrations have it.
func (o Object) String() string {
	return fmt.Sprintf("%s\t%s\t%t\n", o.Name, o.Facts, o.Signature != "")
}

// Objects returns the objects of the named schema, for which it needs no right.
func Objects(ctx context.Context, db interface {
	BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
}, name string,
) (found []Object, err error) {
	err = pgx.BeginTxFunc(ctx, db, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SET LOCAL search_path = pg_catalog, pg_temp"); err != nil {
			return err
		}
		rows, _ := tx.Query(ctx, objectsSQL, name) // CollectRows returns its error
		found, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Object])
		return err
	})
	return found, err
}

// Differences says which objects of this Version a schema lacks, or has in another form, and
// returns the signatures of functions that PUBLIC may execute although the migrations forbid it.
// Additional objects are ignored, and a schema that says that it is of another version is not
// compared. files are the migrations.
func Differences(found []Object, files fs.FS, name string) (differing, public []string) {
	have, texts := map[string]Object{}, bodies(files)
	for _, o := range found {
		have[o.Name] = o
	}
	if o, ok := have["function pglock_schema_version()"]; ok && o.Body != texts["pglock_schema_version"] {
		return nil, nil
	}
	for line := range strings.Lines(objectsOfVersion) {
		want := strings.Split(line, "\t") // name, facts, and whether PUBLIC may execute it
		o, ok := have[want[0]]
		function, _, _ := strings.Cut(strings.TrimPrefix(want[0], "function "), "(")
		body, known := texts[function]
		switch {
		case !ok:
			differing = append(differing, want[0]+" is missing")
		case o.Facts != want[1] || known && !isPinned(o.Body, body, name, have[""].Body):
			differing = append(differing, want[0]+" differs")
		case o.Signature != "" && want[2] != "true\n":
			public = append(public, o.Signature)
		}
	}
	return differing, public
}

// Differs says which objects of the named schema differ, and names the remedy.
func Differs(name string, objects []string) (what, remedy string) {
	const shown = 5
	more := ""
	if n := len(objects) - shown; n > 0 {
		objects, more = objects[:shown], fmt.Sprintf(" and %d more", n)
	}
	return fmt.Sprintf("schema %q has version %d, but not its objects (%s%s)", name, Version, strings.Join(objects, ", "), more),
		fmt.Sprintf("restore it from a backup, or stop all programs, run DROP SCHEMA %s CASCADE and pglock migrate up, and skip the tokens that were used "+
			"(see Backup and restore in the guide to operating)", Quote(name))
}

// bodies returns the bodies of functions by their names, except those that depend on the server.
// The last definition of a name counts.
func bodies(files fs.FS) map[string]string {
	all := map[string]string{}
	paths, _ := fs.Glob(files, "*.up.sql") // the pattern is a constant
	for _, path := range paths {
		text, err := fs.ReadFile(files, path)
		if err != nil {
			panic(err) // it is embedded
		}
		for _, statement := range strings.Split("\n"+string(text), "\nCREATE ")[1:] { // bodies are indented
			function, ok := strings.CutPrefix(strings.TrimPrefix(statement, "OR REPLACE "), "FUNCTION ")
			if !ok {
				continue
			}
			name, rest, _ := strings.Cut(function, "(")
			_, body, _ := strings.Cut(rest, " AS ")
			for _, quote := range []string{"$$", "'"} {
				if quoted, ok := strings.CutPrefix(body, quote); ok {
					all[name], _, _ = strings.Cut(quoted, quote)
				}
			}
		}
	}
	return all
}

// isPinned reports whether found is the body of a function in the named schema: see the function
// pin_functions of the migrations, which leaves itself as it is. quote_ident may quote a name that
// does not need it.
func isPinned(found, body, name, hash string) bool {
	pinned := func(here, setting string) string {
		parts := strings.Split(strings.ReplaceAll(body, "<schema>", setting), "'<here>'")
		for i, part := range parts {
			parts[i] = strings.ReplaceAll(part, `"<here>"`, here)
		}
		return strings.Join(parts, Literal(here))
	}
	return found == body || found == pinned(Quote(name), "x"+hash) || found == pinned(name, name)
}
