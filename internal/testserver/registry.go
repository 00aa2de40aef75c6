package testserver

import (
	"context"
	"encoding/base64"
	"encoding/json"

	"github.com/testcontainers/testcontainers-go"
)

// registryAuth returns what the Docker configuration of this user knows about the image's registry, as a pull sends
// it. Without it, the pull is anonymous.
func registryAuth(ctx context.Context, image string) string {
	_, auth, err := testcontainers.DockerImageAuth(ctx, image)
	if err != nil {
		return ""
	}
	text, err := json.Marshal(auth)
	if err != nil {
		return ""
	}
	return base64.URLEncoding.EncodeToString(text)
}
