package testserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"

	"github.com/pglock/pglock-go/internal/testserver/process"
)

// engine is a Docker engine that answers.
type engine struct {
	*testcontainers.DockerClient
}

const (
	engineTimeout = 5 * time.Second
	loopback      = "127.0.0.1"

	// What testcontainers-go reads from the environment, and needs to be told in some places.
	hostOverride = "TESTCONTAINERS_HOST_OVERRIDE"
	ryukDisabled = "TESTCONTAINERS_RYUK_DISABLED"

	// Labels tell whose a container is, so that the next run can remove what a killed supervisor left.
	namespaceLabel  = "pglock.testserver.namespace"
	supervisorLabel = "pglock.testserver.supervisor"
)

// findEngine returns the engine that testcontainers-go finds, if it answers within seconds.
func findEngine(ctx context.Context) (*engine, error) {
	ctx, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	disableMissingReaper(ctx)
	found, err := testcontainers.NewDockerClientWithOpts(ctx)
	if err == nil {
		_, err = found.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true})
	}
	if err != nil {
		return nil, fmt.Errorf("testserver: no Docker engine answers: %s", oneLine(err))
	}
	e := &engine{found}
	e.correctHost()
	return e, nil
}

// correctHost tells testcontainers-go where the ports of a local engine are, unless that is set already. In a
// container it would take the bridge's gateway for the host, which is right only if the engine runs outside of it;
// that case is found in another way, see awaitContainer. Only this process sees the setting.
func (e *engine) correctHost() {
	if _, found := os.LookupEnv(hostOverride); !found && e.local() {
		os.Setenv(hostOverride, loopback)
	}
}

// disableMissingReaper keeps testcontainers-go from starting its reaper, a second container, where that one's image
// isn't at hand. The supervisor removes its container in any case; the reaper only helps if it is killed. It has to
// be called first, since testcontainers-go looks only once.
func disableMissingReaper(ctx context.Context) {
	if _, found := os.LookupEnv(ryukDisabled); !found && !hasReaper(ctx) {
		os.Setenv(ryukDisabled, "true")
	}
}

func hasReaper(ctx context.Context) bool {
	plain, err := client.New(client.FromEnv)
	if err != nil {
		return false
	}
	defer plain.Close()
	_, err = plain.ImageInspect(ctx, testcontainers.ReaperDefaultImage) //nolint:staticcheck // nothing else tells the image's name
	return err == nil
}

// local reports whether the engine runs on this machine.
func (e *engine) local() bool {
	host := e.DaemonHost()
	return strings.HasPrefix(host, "unix://") || strings.HasPrefix(host, "npipe://")
}

// ensureImage pulls the image if the engine doesn't have it, and returns the name under which it has it. A registry
// that stays silent for longer than patience counts as unreachable; one that sends may take its time.
func (e *engine) ensureImage(ctx context.Context, image string, patience time.Duration) (string, error) {
	if prefix := testcontainers.ReadConfig().Config.HubImageNamePrefix; prefix != "" && image == DefaultImage {
		image = strings.TrimSuffix(prefix, "/") + "/" + image
	}
	_, err := e.ImageInspect(ctx, image)
	if err == nil {
		return image, nil
	}
	if !errdefs.IsNotFound(err) {
		return "", fmt.Errorf("testserver: image %s: %s", image, oneLine(err))
	}
	if err := e.pull(ctx, image, patience); err != nil {
		return "", fmt.Errorf("testserver: image %s is not on this machine and can't be pulled: %s", image, oneLine(err))
	}
	return image, nil
}

func (e *engine) pull(ctx context.Context, image string, patience time.Duration) error {
	const longest = 5 * time.Minute
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	silence := time.AfterFunc(patience, func() {
		giveUp(fmt.Errorf("the registry kept silent for %v", patience))
	})
	defer silence.Stop()

	pulling, err := e.ImagePull(ctx, image, client.ImagePullOptions{RegistryAuth: registryAuth(ctx, image)})
	if err != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	for message, err := range pulling.JSONMessages(ctx) {
		if err != nil {
			return errors.Join(context.Cause(ctx), err)
		}
		if message.Error != nil {
			return message.Error
		}
		silence.Reset(6 * patience) // it is reachable, but unpacking takes its time without a word
	}
	return nil
}

// sweep removes containers whose supervisor was killed.
func (e *engine) sweep(ctx context.Context) error {
	return e.removeContainers(ctx, func(id process.ID) bool { return !id.Alive() })
}

// sweepContainers does so where the caller knows of no engine yet.
func sweepContainers(ctx context.Context) error {
	found, err := findEngine(ctx)
	if err != nil {
		return err
	}
	defer found.Close()
	return found.sweep(ctx)
}

// removeContainers removes those of one supervisor.
func removeContainers(supervisor process.ID) error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	found, err := findEngine(ctx)
	if err != nil {
		return err
	}
	defer found.Close()
	return found.removeContainers(ctx, func(id process.ID) bool { return id == supervisor })
}

// removeContainers removes each container of ours whose supervisor is to be cleaned up after.
func (e *engine) removeContainers(ctx context.Context, of func(supervisor process.ID) bool) error {
	filter := make(client.Filters).Add("label", namespaceLabel+"="+containerNamespace())
	list, err := e.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: filter})
	if err != nil {
		return fmt.Errorf("testserver: list containers: %w", err)
	}
	var failed []error
	for _, box := range list.Items {
		id, err := process.Parse(box.Labels[supervisorLabel])
		if err != nil || !of(id) {
			continue
		}
		_, err = e.ContainerRemove(ctx, box.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		if err != nil && !errdefs.IsNotFound(err) && !errdefs.IsConflict(err) { // conflict: being removed already
			failed = append(failed, fmt.Errorf("testserver: remove container %s: %w", box.ID, err))
		}
	}
	return errors.Join(failed...)
}

func containerLabels(self process.ID) map[string]string {
	return map[string]string{namespaceLabel: containerNamespace(), supervisorLabel: self.String()}
}

// containerNamespace keeps apart what users and machines do with the same engine.
func containerNamespace() string { return userKey() + "-" + namespace() }

func oneLine(err error) string {
	return strings.Join(strings.Fields(err.Error()), " ")
}

func readAll(r io.Reader) string {
	text, err := io.ReadAll(io.LimitReader(r, 1<<20))
	if err != nil {
		return err.Error()
	}
	return string(text)
}
