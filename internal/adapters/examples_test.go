package adapters_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/coreos/go-systemd/v22/unit"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
)

const examples = "../../docs/examples/"

// command builds pglock, once.
var command = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "pglock")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "pglock")
	build := exec.Command("go", "build", "-o", path, "../../pglock/cmd/pglock")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	if err != nil {
		return "", errors.New(string(out))
	}
	return path, nil
})

// checkUsage fails unless pglock understands the arguments: without a database its status is 69 then, and 64 otherwise.
func checkUsage(t *testing.T, args []string) {
	t.Helper()
	path, err := command()
	locktest.OK(t, err)
	if i := slices.Index(args, "--"); i >= 0 && i+1 < len(args) {
		args = append(slices.Clone(args[:i+1]), "true") // which this machine has
	}
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), "PGLOCK_DATABASE_URL=postgres://127.0.0.1:1/none")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 69 {
		t.Errorf("pglock %q: %v: %s", args, err, out)
	}
}

// TestKubernetesManifests parses the manifests strictly, and checks the arguments of pglock in them.
func TestKubernetesManifests(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(examples + "kubernetes/*.yaml")
	if err != nil || len(files) < 2 {
		t.Fatalf("%q, %v", files, err)
	}
	runs := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		locktest.OK(t, err)
		for _, document := range bytes.Split(text, []byte("\n---\n")) {
			var kind struct{ Kind string }
			locktest.OK(t, yaml.Unmarshal(document, &kind))
			var pod corev1.PodSpec
			strictly := func(into any) {
				t.Helper()
				if err := yaml.UnmarshalStrict(document, into); err != nil {
					t.Errorf("%s: %s: %v", file, kind.Kind, err)
				}
			}
			switch kind.Kind {
			case "CronJob":
				var job batchv1.CronJob
				strictly(&job)
				pod = job.Spec.JobTemplate.Spec.Template.Spec
			case "Deployment":
				var d appsv1.Deployment
				strictly(&d)
				pod = d.Spec.Template.Spec
			case "Service":
				strictly(&corev1.Service{})
			default:
				t.Errorf("%s: kind %q", file, kind.Kind)
			}
			if len(pod.Containers) > 0 {
				checkRestricted(t, file, pod)
			}
			for _, c := range pod.Containers {
				if args := slices.Concat(c.Command, c.Args); len(args) > 0 {
					runs++
					checkUsage(t, slices.DeleteFunc(args, func(arg string) bool { return arg == "/pglock" }))
				}
			}
		}
	}
	if runs != 2 {
		t.Errorf("%d containers run pglock", runs)
	}
}

// checkRestricted fails unless a namespace with the Pod Security Standard "restricted" takes the
// pod, which gets no token of the cluster and images of a version.
func checkRestricted(t *testing.T, file string, pod corev1.PodSpec) {
	t.Helper()
	yes := func(b *bool) bool { return b != nil && *b }
	no := func(b *bool) bool { return b != nil && !*b }
	if !no(pod.AutomountServiceAccountToken) {
		t.Errorf("%s: the token of the service account is mounted", file)
	}
	if s := pod.SecurityContext; s == nil || !yes(s.RunAsNonRoot) || s.RunAsUser == nil || *s.RunAsUser == 0 ||
		s.SeccompProfile == nil || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("%s: the pod's securityContext is %+v", file, s)
	}
	for _, c := range pod.Containers {
		s := c.SecurityContext
		if s == nil || !no(s.AllowPrivilegeEscalation) || !yes(s.ReadOnlyRootFilesystem) || s.Capabilities == nil ||
			!slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(s.Capabilities.Add) > 0 {
			t.Errorf("%s: %s: the securityContext is %+v", file, c.Name, s)
		}
		if i := strings.LastIndex(c.Image, ":"); i < 0 || c.Image[i:] == ":latest" {
			t.Errorf("%s: %s: the image %s has no version", file, c.Name, c.Image)
		}
	}
}

// TestSystemdUnits parses the units, and checks the arguments of pglock in them.
func TestSystemdUnits(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(examples + "systemd/*")
	if err != nil || len(files) < 3 {
		t.Fatalf("%q, %v", files, err)
	}
	runs := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		locktest.OK(t, err)
		options, err := unit.DeserializeOptions(bytes.NewReader(text))
		locktest.OK(t, err)
		for _, o := range options {
			if args, found := strings.CutPrefix(o.Value, "/usr/bin/pglock "); o.Name == "ExecStart" && found {
				runs++
				checkUsage(t, strings.Fields(args))
			}
		}
	}
	if runs != 2 {
		t.Errorf("%d units run pglock", runs)
	}
	pgtest.NeedTool(t, "systemd", func() error { _, err := exec.LookPath("systemd-analyze"); return err })
	for _, file := range files {
		path, err := filepath.Abs(file)
		locktest.OK(t, err)
		out, _ := exec.Command("systemd-analyze", "verify", "--man=no", path).CombinedOutput()
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, path) && !strings.Contains(line, "is not executable") { // it is not installed here
				t.Errorf("%s", line)
			}
		}
	}
}

// TestImage builds the image of pglock, which has no shell, and runs a command in it.
func TestImage(t *testing.T) {
	t.Parallel()
	pgtest.NeedTool(t, "docker", func() error { return exec.Command("docker", "info").Run() })
	path, err := command()
	locktest.OK(t, err)
	dockerfile, err := filepath.Abs(examples + "image/Dockerfile")
	locktest.OK(t, err)
	docker := func(args ...string) string {
		t.Helper()
		out, err := exec.Command("docker", args...).Output()
		locktest.OK(t, err)
		return strings.TrimSpace(string(out))
	}
	image := docker("build", "-q", "-f", dockerfile, filepath.Dir(path))
	t.Cleanup(func() { _ = exec.Command("docker", "rmi", "-f", image).Run() })
	if out := docker("run", "--rm", image, "--version"); !strings.HasPrefix(out, "pglock ") {
		t.Errorf("it prints %s", out)
	}
	schema := pgtest.SchemaName(t)
	inside := func(args ...string) string {
		t.Helper()
		return docker(append([]string{"run", "--rm", "--network", "host", "-e", "PGLOCK_DATABASE_URL=" + pgtest.URL(t), "-e", "PGLOCK_SCHEMA=" + schema, image}, args...)...)
	}
	inside("migrate", "up")
	if out := inside("run", "n", "--", "/pglock", "--version"); !strings.HasPrefix(out, "pglock ") {
		t.Errorf("the command prints %s", out)
	}
	if out := inside("ls", "--all"); !strings.Contains(out, "free") {
		t.Errorf("it was not locked: %s", out)
	}
}
