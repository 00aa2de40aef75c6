package main

import (
	"embed"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// usage returns the error of an invalid command line. Its text repeats no argument that is longer
// than a word, since an argument in the wrong place may be a connection string.
func usage(cmd *cobra.Command, format string, args ...any) error {
	return &failure{statusUsage, fmt.Errorf(format+": see %s --help", append(args, cmd.CommandPath())...)}
}

// flagError returns the usage error for an error of pflag, without the flag's value.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	var missing *pflag.ValueRequiredError
	var invalid *pflag.InvalidValueError
	switch {
	case errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() != "":
		return usage(cmd, "unknown flag -%s", unknown.GetSpecifiedName())
	case errors.As(err, &unknown) && plainWord(unknown.GetSpecifiedName()):
		return usage(cmd, "unknown flag --%s", unknown.GetSpecifiedName())
	case errors.As(err, &missing):
		return usage(cmd, "--%s needs a value", missing.GetFlag().Name)
	case errors.As(err, &invalid) && invalid.GetFlag().Value.Type() == "duration":
		value := ""
		if v := invalid.GetValue(); plainValue(v) {
			value = " " + v
		}
		return usage(cmd, "--%s%s is not a duration, like 500ms, 30s or 1h30m", invalid.GetFlag().Name, value)
	case errors.As(err, &invalid) && strings.HasPrefix(invalid.GetFlag().Value.Type(), "int"):
		return usage(cmd, "--%s is not a number", invalid.GetFlag().Name)
	case errors.As(err, &invalid):
		return usage(cmd, "--%s has an invalid value", invalid.GetFlag().Name)
	}
	return usage(cmd, "unknown flag")
}

//go:embed help
var helpTexts embed.FS

func help(name string) string {
	text, err := helpTexts.ReadFile("help/" + name + ".txt")
	if err != nil {
		panic(err) // embedded, and each is read when pglock starts
	}
	return strings.TrimRight(string(text), "\n")
}

func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage(cmd, "%s takes no arguments", cmd.CommandPath())
	}
	return nil
}

// plainWord reports whether s is safe to print: a command or a flag, perhaps misspelled, but not a
// connection string.
func plainWord(s string) bool {
	return len(s) <= 30 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-") == ""
}

// plainValue reports whether s is safe to print as a number or a time that was written wrong.
func plainValue(s string) bool { return len(s) <= 12 && strings.Trim(s, "0123456789.,-smhd") == "" }
