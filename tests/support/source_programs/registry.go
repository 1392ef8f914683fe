package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/distribution/distribution/v3/configuration"
	_ "github.com/distribution/distribution/v3/registry/auth/htpasswd"
	"github.com/distribution/distribution/v3/registry/auth/token"
	"github.com/distribution/distribution/v3/registry/handlers"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/filesystem"
	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"golang.org/x/crypto/bcrypt"
)

const (
	issuer  = "source-servers"
	service = "registry"
)

// serveRegistries serves one storage three times: open, with a password, and with tokens.
func serveRegistries(root string) (map[string]string, error) {
	passwords := filepath.Join(root, "htpasswd")
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(passwords, []byte(username+":"+string(hash)+"\n"), 0o600); err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	issued, err := serve(tokenService(key))
	if err != nil {
		return nil, err
	}
	public := jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: &key.PublicKey, KeyID: issuer}}}
	content, err := json.Marshal(public)
	if err != nil {
		return nil, err
	}
	jwks := filepath.Join(root, "jwks.json")
	if err := os.WriteFile(jwks, content, 0o600); err != nil {
		return nil, err
	}
	kinds := map[string]configuration.Auth{
		"registry":       nil,
		"registry_basic": {"htpasswd": {"realm": "tests", "path": passwords}},
		"registry_token": {"token": {
			"realm": issued + "/token", "issuer": issuer, "service": service, "jwks": jwks,
		}},
	}
	addresses := map[string]string{}
	for name, auth := range kinds {
		config := &configuration.Configuration{Auth: auth}
		config.Storage = configuration.Storage{
			"filesystem":  {"rootdirectory": filepath.Join(root, "registry")},
			"maintenance": {"uploadpurging": map[any]any{"enabled": false}},
		}
		config.HTTP.Secret = "tests"
		config.Log.Level = "error"
		config.Log.AccessLog.Disabled = true
		if addresses[name], err = serve(handlers.NewApp(context.Background(), config)); err != nil {
			return nil, err
		}
	}
	return addresses, nil
}

// tokenService hands out tokens as the distribution project's token specification says.
func tokenService(key *ecdsa.PrivateKey) http.Handler {
	signer, err := jose.NewSigner(
		jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: issuer}},
		(&jose.SignerOptions{}).WithType("JWT"),
	)
	if err != nil {
		panic(err)
	}
	return http.HandlerFunc(func(writer http.ResponseWriter, request *http.Request) {
		name, given, known := request.BasicAuth()
		if known && (name != username || given != password) {
			http.Error(writer, `{"details": "wrong user name or password"}`, http.StatusUnauthorized)
			return
		}
		now := time.Now()
		claims := token.ClaimSet{
			Issuer: issuer, Subject: name, Audience: token.AudienceList{service},
			Expiration: now.Add(time.Minute).Unix(), NotBefore: now.Add(-time.Minute).Unix(),
			IssuedAt: now.Unix(), Access: granted(request.URL.Query(), known),
		}
		signed, err := jwt.Signed(signer).Claims(claims).Serialize()
		if err != nil {
			http.Error(writer, err.Error(), http.StatusInternalServerError)
			return
		}
		json.NewEncoder(writer).Encode(map[string]any{"token": signed, "expires_in": 60})
	})
}

// granted lets everybody pull what is called public, and the one account pull everything and push what
// is not called readonly.
func granted(query url.Values, known bool) []*token.ResourceActions {
	access := []*token.ResourceActions{}
	for _, scope := range query["scope"] {
		parts := strings.Split(scope, ":")
		if len(parts) != 3 || !(known || strings.HasPrefix(parts[1], "public/")) {
			continue
		}
		actions := []string{"pull"}
		if known && parts[2] == "pull,push" && !strings.HasPrefix(parts[1], "readonly/") {
			actions = append(actions, "push")
		}
		access = append(access, &token.ResourceActions{
			Type: parts[0], Name: parts[1], Actions: actions,
		})
	}
	return access
}
