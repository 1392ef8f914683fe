package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

const provisionerName = "enginewright.dev/local"

// provisioner gives every claim of the class `standard` a folder of this machine.
//
// All nodes of the local cluster are processes of one machine, so one folder really is
// ReadWriteMany. hostPath volumes get no fsGroup, hence the open mode.
type provisioner struct {
	client kubernetes.Interface
	root   string
}

// runProvisioner serves until it is ended.
// usage: provisioner KUBECONFIG FOLDER
func runProvisioner(arguments []string) error {
	if len(arguments) != 2 {
		return errors.New("usage: provisioner KUBECONFIG FOLDER")
	}
	config, err := clientcmd.BuildConfigFromFlags("", arguments[0])
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	p := &provisioner{client: client, root: arguments[1]}
	factory := informers.NewSharedInformerFactory(client, time.Minute)
	claims := factory.Core().V1().PersistentVolumeClaims().Informer()
	volumes := factory.Core().V1().PersistentVolumes().Informer()
	if _, err := claims.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { p.provision(object.(*core.PersistentVolumeClaim)) },
		UpdateFunc: func(_, object any) { p.provision(object.(*core.PersistentVolumeClaim)) },
	}); err != nil {
		return err
	}
	if _, err := volumes.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { p.reclaim(object.(*core.PersistentVolume)) },
		UpdateFunc: func(_, object any) { p.reclaim(object.(*core.PersistentVolume)) },
	}); err != nil {
		return err
	}
	factory.Start(context.Background().Done())
	select {}
}

func (p *provisioner) provision(claim *core.PersistentVolumeClaim) {
	class := claim.Spec.StorageClassName
	if claim.Spec.VolumeName != "" || class == nil || *class != "standard" || claim.DeletionTimestamp != nil {
		return
	}
	name := "local-" + string(claim.UID)
	folder := filepath.Join(p.root, name)
	if err := os.MkdirAll(folder, 0o777); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	if err := os.Chmod(folder, 0o777); err != nil { // MkdirAll heeds the umask
		fmt.Fprintln(os.Stderr, err)
		return
	}
	kind := core.HostPathDirectory
	_, err := p.client.CoreV1().PersistentVolumes().Create(context.Background(), &core.PersistentVolume{
		ObjectMeta: meta.ObjectMeta{
			Name:        name,
			Annotations: map[string]string{"pv.kubernetes.io/provisioned-by": provisionerName},
		},
		Spec: core.PersistentVolumeSpec{
			Capacity:                      claim.Spec.Resources.Requests,
			AccessModes:                   claim.Spec.AccessModes,
			PersistentVolumeReclaimPolicy: core.PersistentVolumeReclaimDelete,
			StorageClassName:              *class,
			ClaimRef: &core.ObjectReference{
				APIVersion: "v1", Kind: "PersistentVolumeClaim",
				Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
			},
			PersistentVolumeSource: core.PersistentVolumeSource{
				HostPath: &core.HostPathVolumeSource{Path: folder, Type: &kind},
			},
		},
	}, meta.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		fmt.Fprintln(os.Stderr, err)
	}
}

func (p *provisioner) reclaim(volume *core.PersistentVolume) {
	ours := volume.Annotations["pv.kubernetes.io/provisioned-by"] == provisionerName
	if !ours || volume.Status.Phase != core.VolumeReleased || volume.Spec.HostPath == nil {
		return
	}
	folder := volume.Spec.HostPath.Path
	if !strings.HasPrefix(folder, p.root+string(filepath.Separator)) {
		return
	}
	if err := os.RemoveAll(folder); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	err := p.client.CoreV1().PersistentVolumes().Delete(context.Background(), volume.Name, meta.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		fmt.Fprintln(os.Stderr, err)
	}
}
