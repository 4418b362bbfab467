"""What a launcher gave its processes, and what they found of it: ranks, devices, versions, files.

torchrun, mp.spawn, DeepSpeed, Accelerate, Lightning, srun, mpirun; NCCL 2.2 to 2.29 for the devices.
"""

from __future__ import annotations

from unhang.read.logs.patterns import Pattern

_DUPLICATE = "Duplicate GPU detected : rank 2 and rank 0 both on CUDA device 1000"

PATTERNS = (
    # Ranks and worlds.
    Pattern(
        "launchers.variable_missing",
        r"Error: .{0,300}environment variable (?P<name>\w+) expected, but not set(?!.{0,300}falling back)"
        r"|Error: .{0,300}\b(?P<old_name>rank|world size) (?:is not set but it is|is) required for env:// init method",
        ("expected, but not set", "for env:// init method"),
        (
            "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK expected, but not set",
            "RuntimeError: rank is not set but it is required for env:// init method",
        ),
        (
            "Failed to initialize process group: environment variable RANK expected, but not set, falling back to single GPU",
            "Warning: environment variable RANK expected, but not set",
        ),
        says="crash",
    ),
    Pattern(
        "launchers.variable_missing",
        r"^\s*KeyError: '(?P<name>RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT)'",
        ("KeyError: 'RANK'", "KeyError: 'LOCAL_", "KeyError: 'WORLD_SIZE'", "KeyError: 'MASTER_"),
        ("KeyError: 'LOCAL_RANK'", "KeyError: 'WORLD_SIZE'"),
        ("caught KeyError: 'RANK' and went on",),
        says="crash",
    ),
    Pattern(
        "launchers.local_rank_argument",
        r"error: unrecognized arguments: .{0,300}--local[-_]rank(?:=(?P<local_rank>\d+))?",
        ("error: unrecognized arguments:",),
        (
            "train.py: error: unrecognized arguments: --local-rank=0",
            "main.py: error: unrecognized arguments: --local_rank=1",
        ),
        ("train.py: error: unrecognized arguments: --epoch 3",),
        says="crash",
    ),
    Pattern(
        "launchers.rank_too_high",
        r"NCCL WARN Invalid rank requested : (?P<wrong_rank>-?\d+)/(?P<size>\d+)|"
        r"Invalid rank (?P<told_rank>\d+), rank should be in the interval \[0, (?P<highest>-?\d+)\]",
        ("Invalid rank",),
        (
            "node-a:4242:4300 [0] init.cc:1650 NCCL WARN Invalid rank requested : 8/8",
            "ValueError: Invalid rank 2, rank should be in the interval [0, 1]",
        ),
        says="crash",
    ),
    Pattern(
        "launchers.two_worlds",
        r"Bootstrap Root : mismatch in rank count from procs (?P<size>\d+) : (?P<other_size>\d+)",
        ("mismatch in rank count from procs",),
        ("node-a:4242:4300 [0] bootstrap.cc:120 NCCL WARN Bootstrap Root : mismatch in rank count from procs 8 : 16",),
        says="crash",
    ),
    Pattern(
        "launchers.rank_twice",
        r"Bootstrap Root : rank (?P<wrong_rank>\d+) of (?P<size>\d+) ranks has already checked in",
        ("ranks has already checked in",),
        ("node-a:4242:4300 [0] bootstrap.cc:125 NCCL WARN Bootstrap Root : rank 3 of 8 ranks has already checked in",),
        says="crash",
    ),
    Pattern(
        "launchers.refused",
        r"There are not enough slots available in the system to satisfy the (?P<slots>\d+)|"
        r"direct launched using \"srun\"|srun: error: Unable to create step for job \d+: (?P<reason>.*)|"
        r"Error: launcher '(?P<launcher>\w+)' not installed|Error: Unsupported nproc_per_node value|"
        r"Error: .{0,300}You set `(?:--)?(?:devices|ntasks|num_nodes)[=\w]*`.{0,300}SLURM|"
        r"`Accelerator` should only be initialized inside your training function",
        (
            "not enough slots available",
            'direct launched using "srun"',
            "Unable to create step for job",
            "' not installed",
            "Unsupported nproc_per_node value",
            "You set `",
            "inside your training function",
        ),
        (
            "There are not enough slots available in the system to satisfy the 16",
            'The application appears to have been direct launched using "srun",',
            "srun: error: Unable to create step for job 4242: More processors requested than permitted",
            "RuntimeError: launcher 'pdsh' not installed.",
            "ValueError: Unsupported nproc_per_node value: gpus",
            "ValueError: You set `devices=8` in Lightning, but the number of tasks per node configured in SLURM `--ntasks-per-node=1` "
            "does not match.",
        ),
        ("the package 'apex' not installed, going on without it", "You set `devices=8` on a machine without SLURM"),
        says="crash",
    ),
    Pattern(
        "launchers.member",
        r"[Ii]nitializing (?:ddp|distributed): GLOBAL_RANK: (?P<rank>\d+), MEMBER: (?P<member>\d+)/(?P<world_size>\d+)",
        ("GLOBAL_RANK: ",),
        ("initializing ddp: GLOBAL_RANK: 1, MEMBER: 2/8", "Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/8"),
    ),
    Pattern(
        "launchers.node_unreachable",
        r"ssh exited with exit code 255|ORTE was unable to reliably start one or more daemons|Host key verification failed|"
        r"host=(?P<told_host>\S+) was not reachable via ssh|Permission denied \(publickey|"
        r"ssh: connect to host (?P<host>\S+) port \d+: (?P<reason>.*)",
        (
            "ssh exited with exit code 255",
            "was not reachable via ssh",
            "ORTE was unable to reliably start",
            "ssh: connect to host",
            "Host key verification failed",
            "Permission denied (publickey",
        ),
        (
            "pdsh@node-a: node-b: ssh exited with exit code 255",
            "node-b: ssh: connect to host node-b port 22: Connection refused",
            "node-b: Host key verification failed.",
            "ORTE was unable to reliably start one or more daemons.",
            "RuntimeError: Using hostfile at hostfile but host=node-b was not reachable via ssh. If you are running with a single node",
        ),
        says="crash",
    ),
    # Devices.
    Pattern(
        "device.invalid_ordinal",
        r"Error: (?:CUDA|HIP) error: invalid device ordinal|cuda runtime error \((?:10|101)\) : invalid device ordinal|"
        r"Test (?:CUDA|HIP) failure .{0,300}'invalid device ordinal'|GPU device may be out of range, do you have enough GPUs|"
        r"device >= 0 && device < num_gpus|\bhipErrorInvalidDevice\b|Error: Invalid device id\b|"
        r"Error: .{0,300}local rank (?P<local_rank>\d+) .{0,300}(?:out of bounds|out of range|exceeds).{0,300}(?:GPU|device)",
        (
            "invalid device ordinal",
            "GPU device may be out of range",
            "device >= 0 && device < num_gpus",
            "hipErrorInvalidDevice",
            "Error: Invalid device id",
            "local rank ",
        ),
        (
            "RuntimeError: CUDA error: invalid device ordinal",
            "torch.AcceleratorError: CUDA error: invalid device ordinal",
            "RuntimeError: cuda runtime error (10) : invalid device ordinal at /pytorch/torch/csrc/cuda/Module.cpp:33",
            "node-a: Test CUDA failure common.cu:892 'invalid device ordinal'",
            "AssertionError: Invalid device id",
            "AssertionError: DP adjusted local rank 4 is out of bounds. Only 4 devices are visible.",
        ),
        ("node-a:4242:4300 [0] transport/p2p.cc:275 NCCL WARN Cuda failure 101 'invalid device ordinal'",),
        says="crash",
    ),
    Pattern(
        "device.too_few",
        r"You requested gpu: \[[\d, ]*\]|ProcessGroupNCCL is only supported with GPUs, no GPUs found|"
        r"(?:number of required GPUs|nproc_per_node \d+) exceeds the total number of available GPUs",
        ("You requested gpu:", "no GPUs found", "exceeds the total number of available GPUs"),
        (
            "MisconfigurationException: You requested gpu: [0, 1, 2, 3]",
            "ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!",
            "ValueError: The number of required GPUs exceeds the total number of available GPUs in the placement group.",
        ),
        ("no GPUs found by the exporter",),
        says="crash",
    ),
    Pattern(
        "device.duplicate",
        r"Duplicate GPU detected ?: rank (?P<first_rank>\d+) and rank (?P<second_rank>\d+) both on (?:\w+ )?device (?P<device>\w+)",
        ("Duplicate GPU detected",),
        (f"node-a:86771:21784 [0] init.cc:497 NCCL WARN {_DUPLICATE}", _DUPLICATE),
        says="crash",
    ),
    Pattern(
        "device.init_invalid_usage",
        r"\[(?P<device>\d+)\] NCCL INFO init\.cc:\d+ -> 5\b",
        (" -> 5",),
        ("node-a:33688:35760 [0] NCCL INFO init.cc:903 -> 5",),
        ("node-a:33688:35760 [0] NCCL INFO include/net.h:32 -> 5",),
    ),
    Pattern(
        "device.old_invalid_usage",
        r"invalid usage, NCCL version (?P<version>2\.[0-9]\.\d+|2\.10\.\d+|2[0-9]\.[0-9]\.\d+)\b",
        ("invalid usage, NCCL version",),
        (
            "RuntimeError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:957, invalid usage, NCCL version 21.0.3",
            "RuntimeError: NCCL error in: /pytorch/torch/lib/c10d/ProcessGroupNCCL.cpp:784, invalid usage, NCCL version 2.7.8",
        ),
        ("NCCL error in: ProcessGroupNCCL.cpp:1727, invalid usage, NCCL version 2.19.3",),
        says="crash",
    ),
    Pattern(
        "device.guessed",
        r"using (?:best-guess )?GPU (?P<device>\d+) (?:to perform barrier )?as .{0,300}currently unknown|[Gg]uessing device ID based on global rank",
        ("currently unknown", "uessing device ID based on global rank"),
        (
            "[W ProcessGroupNCCL.cpp:1856] [PG 0 Rank 3] using GPU 3 to perform barrier as devices used by this process are currently "
            "unknown. This can potentially cause a hang if this rank to GPU mapping is incorrect.",
            "No device id is provided via `init_process_group` or `barrier `. Guessing device ID based on global rank.",
        ),
    ),
    # Two devices of which the processes cannot see each other's.
    Pattern(
        "device.no_peer_access",
        r"peer access is not supported between these two devices|\bcudaErrorPeerAccessUnsupported\b",
        ("peer access is not supported", "cudaErrorPeerAccessUnsupported"),
        (
            "Cuda failure 217 'peer access is not supported between these two devices'",
            "RuntimeError: CUDA error: peer access is not supported between these two devices",
            "Failed: Cuda error /workspace/csrc/custom_all_reduce.cuh:307 'peer access is not supported between these two devices'",
        ),
        says="crash",
    ),
    Pattern(
        "device.peer_not_visible",
        r"C(?:uda|UDA) failure (?:101 )?'invalid device ordinal'|transport/p2p\.cc.{0,300}invalid device ordinal",
        ("invalid device ordinal",),
        (
            "node-a:4242:4300 [0] transport/p2p.cc:275 NCCL WARN Cuda failure 101 'invalid device ordinal'",
            "Cuda failure 'invalid device ordinal'",
        ),
        (
            "RuntimeError: CUDA error: invalid device ordinal",
            "Test CUDA failure common.cu:892 'invalid device ordinal'",
        ),
        says="crash",
    ),
    Pattern(
        "device.ipc_failed",
        r"failed to open CUDA IPC handle ?: (?P<code>\d+) (?P<reason>.*)|(?:cuda|hip)IpcOpenMemHandle(?:\(.{0,80}\))? (?:failed|returned)|"
        r"transport/p2p\.cc:\d+ NCCL WARN Cuda failure (?:\d+ )?'(?P<failure>invalid argument|invalid resource handle)'",
        ("failed to open CUDA IPC handle", "IpcOpenMemHandle", "transport/p2p.cc:"),
        (
            "node-a:4242:4300 [0] transport/p2p.cc:238 NCCL WARN failed to open CUDA IPC handle : 217 peer access is not supported "
            "between these two devices",
            "node-a:44:50 [7] transport/p2p.cc:178 WARN failed to open CUDA IPC handle : 11 invalid argument",
            "node-a:44:50 [7] transport/p2p.cc:263 NCCL WARN Cuda failure 1 'invalid argument'",
        ),
        ("Program hit an error on CUDA API call to cudaIpcOpenMemHandle.",),
        says="crash",
    ),
    # Versions.
    Pattern(
        "version.nccl_differs",
        r"Mismatched NCCL version detected : rank (?P<first_rank>\d+) version (?P<first>\d+) rank (?P<second_rank>\d+) version (?P<second>\d+)",
        ("Mismatched NCCL version detected",),
        (
            "node-a:1:1 [0] init.cc:810 NCCL WARN Mismatched NCCL version detected : rank 0 version 21805 rank 8 version 22005",
        ),
        says="crash",
    ),
    Pattern(
        "version.nccl",
        r"^(?:\S+ \[\d+\] NCCL INFO )?NCCL version (?P<version>\d+\.\d+\.\d+)\+(?P<built_for>cuda[\d.]+|hip[\d.]+)",
        ("NCCL version",),
        ("NCCL version 2.19.3+cuda12.3", "node-a:1:1 [0] NCCL INFO NCCL version 2.26.2+cuda12.8"),
        ("NCCL error in: ProcessGroupNCCL.cpp:1727, invalid usage, NCCL version 2.19.3",),
    ),
    Pattern(
        "version.symbol_missing",
        r"undefined symbol: _?(?P<symbol>nccl\w+|\w*c10d\w*|\w*NCCL\w*)|'_RendezvousState' object has no attribute",
        ("undefined symbol:", "'_RendezvousState' object"),
        ("ImportError: /opt/env/lib/libtorch_cuda.so: undefined symbol: ncclCommRegister",),
        ("OSError: libsndfile.so: undefined symbol: FLAC__x",),
        says="crash",
    ),
    Pattern(
        "version.cuda_differs",
        r"detected CUDA version \((?P<first>[\d.]+)\) mismatches the version that was used to compile|"
        r"Installed CUDA version (?P<installed>[\d.]+) does not match the version torch was compiled with|"
        r"PyTorch and torchvision were compiled with different CUDA",
        (
            "mismatches the version that was used",
            "does not match the version torch was compiled with",
            "compiled with different CUDA",
        ),
        (
            "RuntimeError: The detected CUDA version (11.8) mismatches the version that was used to compile PyTorch (12.1).",
            "Exception: >- DeepSpeed Op Builder: Installed CUDA version 11.8 does not match the version torch was compiled with 12.1",
            "RuntimeError: Detected that PyTorch and torchvision were compiled with different CUDA major versions.",
        ),
        says="crash",
    ),
    Pattern(
        "version.ofi_register",
        r"NCCL WARN NET/OFI .{0,300}[Uu]nable to register memory.{0,300}RC: -22",
        ("NET/OFI",),
        (
            "register_rail_mr_buffer:617 NCCL WARN NET/OFI Unable to register memory (type = 2) for device 4. RC: -22, Error: Invalid "
            "argument",
        ),
        ("NCCL INFO NET/OFI Selected Provider is efa (found 4 nics)",),
    ),
    # Files that several ranks or nodes touch.
    Pattern(
        "files.rename_lost",
        r"\[Errno 2\] No such file or directory: '(?P<path>[^']+)' -> '(?P<to>[^']+)'",
        ("No such file or directory: '",),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/run/tmp.pth.tar' -> '/run/last.pth.tar'",),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/train.json'",),
        says="crash",
    ),
    Pattern(
        "files.rename_lost",
        r"OSError: \[Errno 39\] Directory not empty: '(?P<path>[^']+)'(?: -> '(?P<to>[^']+)')?",
        ("Directory not empty: '",),
        ("OSError: [Errno 39] Directory not empty: '/out/tmp-checkpoint-8' -> '/out/checkpoint-50'",),
        says="crash",
    ),
    Pattern(
        "files.index_missing",
        r"(?:Errno 2\]|FileNotFoundError:) .{0,300}'(?P<path>[^']{0,300}(?:index[-_]?cache|GPTDataset|_indexmap_|"
        r"(?:doc|sample|shuffle|document)[-_](?:index|idx))[^']{0,200}\.npy)'",
        (".npy'",),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: '/data/index-cache/43d5bc14_doc_idx.npy'",
            "FileNotFoundError: [Errno 2] No such file or directory: '/data/cache/GPTDataset_indices/6d84-GPTDataset-train-document_index.npy'",
        ),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/labels.npy'",),
        says="crash",
    ),
    Pattern(
        "files.index_frame",
        r"(?P<function>_build_document_sample_shuffle_indices|_build_index_mappings)\b",
        ("_build_document_sample_shuffle_indices", "_build_index_mappings"),
        (
            "    ) = self._build_document_sample_shuffle_indices()",
            '  File "gpt_dataset.py", line 261, in _build_index_mappings',
        ),
    ),
    Pattern(
        "files.stale_handle",
        r"OSError: \[Errno 116\] Stale file handle(?:: '?(?P<path>[^']*))?|Stale NFS file handle",
        ("Stale file handle", "Stale NFS file handle"),
        ("OSError: [Errno 116] Stale file handle: '/shared/.cache/datasets/text'",),
        ("ls: cannot access 'x': Stale file handle",),
        says="crash",
    ),
    Pattern(
        "files.lock_lost",
        r"Couldn't acquire lock on (?P<path>\S+) from process \d+|Expected to find locked file (?P<locked>\S+) from process",
        ("Couldn't acquire lock on", "Expected to find locked file"),
        (
            "ValueError: Couldn't acquire lock on /.hf_cache/metrics/accuracy/default/exp-16-rdv.lock from process 4.",
            "ValueError: Expected to find locked file /.hf_cache/metrics/accuracy/exp-16-0.arrow.lock from process 15 but it doesn't exist.",
        ),
        says="crash",
    ),
    Pattern(
        "files.extension",
        r"Error: (?P<path>\S*torch_extensions\S*\.so): (?:cannot open shared object file|file too short|invalid ELF header)",
        ("torch_extensions",),
        (
            "ImportError: /home/user/.cache/torch_extensions/py310_cu121/fused_adam/fused_adam.so: cannot open shared object file: No such file",
        ),
        ("Using /home/user/.cache/torch_extensions/py310_cu121 as PyTorch extensions root...",),
        says="crash",
    ),
    Pattern(
        "files.exists",
        r"FileExistsError: \[Errno 17\] File exists: '(?P<path>[^']+)'",
        ("FileExistsError: [Errno 17]",),
        ("FileExistsError: [Errno 17] File exists: '/shared/out/checkpoint-100'",),
        says="crash",
    ),
    Pattern(
        "files.gone_while_deleting",
        r"FileNotFoundError: \[Errno 2\] No such file or directory: '(?P<path>[^']*(?:checkpoint|ckpt|global_step|step_|epoch)[^']*)'$",
        ("No such file or directory: '",),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/shared/out/checkpoint-9/optimizer.pt'",),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/train.json'",),
        says="crash",
    ),
    Pattern(
        "files.shards_missing",
        r"The following zero checkpoints paths are missing: \['(?P<path>[^']+)'",
        ("zero checkpoints paths are missing",),
        (
            "[WARNING] The following zero checkpoints paths are missing: ['out/step_5/bf16_zero_pp_rank_8_mp_rank_00_optim_states.pt']",
        ),
    ),
    Pattern(
        "files.rotating",
        r"Deleting older checkpoint \[(?P<path>[^\]]+)\]",
        ("Deleting older checkpoint",),
        ("Deleting older checkpoint [/shared/out/checkpoint-9] due to args.save_total_limit",),
    ),
)
