"""The kernel log, nvidia-smi and DCGM: what drivers and buses say of devices and of killed processes."""

from __future__ import annotations

from unhang.read.logs.patterns import Pattern

_XID = (
    Pattern(
        "kernel.xid",
        r"\bXid \((?:PCI:)?(?P<bus>[0-9A-Fa-f:.]{4,20})\): (?P<code>\d{1,3})\b(?:, (?:pid='?(?P<pid>\d+))?)?(?P<detail>.{0,160})",
        ("Xid (",),
        (
            "[131.2] NVRM: Xid (PCI:0000:44:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            "kernel: NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping, reset gpu to "
            "activate.",
            "NVRM: Xid (0000:03:00): 31, Ch 00000010, engmask 00000101, intr 10000000",
        ),
        not_examples=("see the list of Xid (errors of the driver)",),
    ),
    Pattern(
        "kernel.xid",
        r"\b(?:XID|Xid|xid)(?: error| errors?)?(?: code)?[ :=]{1,3}(?P<code>\d{1,3})\b.{0,80}?(?:GPU|gpu|PCI)[ :=]?(?P<bus>[\w:.]{1,20})",
        ("XID error", "Xid error", "XID ", "Xid:", "XID:", "Xid code", "xid error"),
        ("DCGM health: XID error: 79 detected on GPU 3", "XID 94 on GPU 2"),
        not_examples=("DCGM_FI_DEV_XID errors are watched on XID changes",),
    ),
    Pattern(
        "kernel.sxid",
        r"SXid \((?:PCI:)?(?P<bus>[0-9A-Fa-f:.]{4,20})\): (?P<code>\d{4,6}),? (?P<severity>Non-fatal|Fatal)?(?P<detail>.{0,120})",
        ("SXid (",),
        ("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",),
        not_examples=("SXid (see the manual)",),
    ),
)

_DEVICE = (
    Pattern(
        "kernel.off_the_bus",
        r"GPU (?:at .{1,60} )?has fallen off the bus|NVRM: fallen off the bus|fallen off the bus and is not responding",
        ("fallen off the bus",),
        (
            "NVRM: GPU at PCI:0000:44:00: GPU-0b1c has fallen off the bus.",
            "NVRM: Xid (PCI:0000:44:00): 79, GPU has fallen off the bus.",
            "               NVRM: fallen off the bus and is not responding to commands.",
        ),
        not_examples=("he had fallen off the bus",),
        says="crash",
    ),
    Pattern(
        "kernel.device_lost",
        r"Unable to determine the device handle for (?:GPU|gpu) ?(?P<bus>[0-9A-Fa-f:.]+): (?P<why>.{1,80})"
        r"|\bGPU is lost\.|NVML_ERROR_GPU_IS_LOST|GPU requires (?:a )?reset",
        ("Unable to determine the device handle", "GPU is lost", "GPU_IS_LOST", "GPU requires"),
        (
            "Unable to determine the device handle for GPU0000:03:00.0: Unknown Error",
            "Unable to determine the device handle for GPU 0000:4D:00.0: GPU is lost.  Reboot the system to recover this GPU",
            "nvmlDeviceGetHandleByIndex failed: NVML_ERROR_GPU_IS_LOST",
        ),
        not_examples=("this GPU requires 300 W",),
    ),
    Pattern(
        "kernel.ecc_uncorrectable",
        r"(?:uncorrectable ECC error\b|cudaErrorECCUncorrectable|CUDA_ERROR_ECC_UNCORRECTABLE)",
        ("uncorrectable ECC error", "ECCUncorrectable", "ECC_UNCORRECTABLE"),
        (
            "RuntimeError: CUDA error: uncorrectable ECC error encountered",
            "RuntimeError: cuda runtime error (39) : uncorrectable ECC error encountered at "
            "/pytorch/aten/src/THC/THCCachingHostAllocator.cpp:265",
            "NCCL WARN Cuda failure 'uncorrectable ECC error encountered'",
        ),
        not_examples=("0 uncorrectable ECC errors were counted",),
        says="crash",
    ),
    Pattern(
        "kernel.nvlink_uncorrectable",
        r"uncorrectable NVLink error|cudaErrorNvlinkUncorrectable|CUDA_ERROR_NVLINK_UNCORRECTABLE",
        ("uncorrectable NVLink error", "NvlinkUncorrectable", "NVLINK_UNCORRECTABLE"),
        ("RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution",),
        says="crash",
    ),
    Pattern(
        "kernel.amd_uncorrectable",
        r"amdgpu.{0,80}(?<!\b0 )uncorrectable hardware errors?.{0,80}detected",
        ("uncorrectable hardware error",),
        ("[ 1358.99] amdgpu 0000:83:00.0: uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!",),
        not_examples=(
            "amdgpu 0000:9d:00.0: socket: 6, 0 uncorrectable hardware errors detected in total in xgmi block",
        ),
        says="crash",
    ),
    Pattern(
        "kernel.ecc_rank",
        r"\[(?:PG [^\]]{0,80} )?Rank (?P<group_rank>\d+)\].{0,120}uncorrectable ECC error encountered",
        ("uncorrectable ECC error encountered",),
        (
            "[E ProcessGroupNCCL.cpp:916] [Rank 1] NCCL watchdog thread terminated with exception: CUDA error: uncorrectable ECC "
            "error encountered",
        ),
        not_examples=("RuntimeError: CUDA error: uncorrectable ECC error encountered",),
        says="crash",
    ),
    Pattern(
        "kernel.device_unknown_error",
        r"CUDA error: unknown error|CUDA_ERROR_UNKNOWN|No CUDA GPUs are available|CUDA error: all CUDA-capable devices are busy",
        ("CUDA error: unknown error", "CUDA_ERROR_UNKNOWN", "No CUDA GPUs are available", "all CUDA-capable devices"),
        ("RuntimeError: CUDA error: unknown error",),
        says="crash",
    ),
    Pattern(
        "kernel.smi_error_field",
        r"\| *(?:ERR!|\[?Unknown Error\]?|\[?GPU requires reset\]?) ",
        ("ERR!", "Unknown Error", "GPU requires reset"),
        ("|  0%   ERR!   P0   ERR! / 350W |     10MiB / 24576MiB |   ERR!      Default |",),
        not_examples=("RuntimeError: Unknown Error",),
    ),
    Pattern(
        "kernel.driver_init_failed",
        r"RmInitAdapter failed|rm_init_adapter failed|GPU initialization failed|NVRM: The NVIDIA probe routine failed",
        ("RmInitAdapter failed", "rm_init_adapter failed", "GPU initialization failed", "NVIDIA probe routine failed"),
        ("NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x22:0x56:894)",),
    ),
    Pattern(
        "kernel.gsp_timeout",
        r"(?:Timeout (?:after \d+s of )?waiting for RPC (?:response )?from (?:GPU\d* )?GSP|GSP RPC [Tt]imeout"
        r"|GSP task timeout|_kgspBootGspRm: unexpected|failed to (?:boot|load) GSP)",
        ("from GSP", "GSP!", "GSP RPC", "GSP task", "kgspBootGspRm", "load GSP", "boot GSP", " GSP"),
        (
            "NVRM: Xid (PCI:0000:b5:00): 119, pid=11, Timeout waiting for RPC from GSP! Expected function 76.",
            "NVRM: Xid (PCI:0000:b5:00): 119, Timeout after 45s of waiting for RPC response from GPU0 GSP! Expected function 4097",
        ),
        not_examples=("NVRM: loading GSP firmware",),
    ),
    Pattern(
        "kernel.driver_mismatch",
        r"NVRM: API mismatch|Driver/library version mismatch|CUDA driver version is insufficient",
        ("API mismatch", "library version mismatch", "driver version is insufficient"),
        (
            "Failed to initialize NVML: Driver/library version mismatch",
            "Cuda failure 'CUDA driver version is insufficient for CUDA runtime version'",
        ),
        not_examples=("API mismatch of the store client",),
    ),
)

_BUS = (
    Pattern(
        "kernel.pcie_error",
        r"(?:AER|PCIe Bus Error): ?(?:severity=)?(?P<severity>Corrected|Uncorrected|Uncorrectable|Multiple Corrected|"
        r"Multiple Uncorrected)[^:]*",
        ("AER: ", "PCIe Bus Error"),
        (
            "[  +0.725665] pcieport 0000:00:03.0: AER: Corrected error received: 0000:00:03.0",
            "pcieport 0000:00:03.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Transmitter ID)",
            "pcieport 0000:00:03.0: AER: Uncorrected (Fatal) error received: 0000:03:00.0",
        ),
        not_examples=("AER: enabled with IRQ 24",),
    ),
    Pattern(
        "kernel.iommu_fault",
        r"AMD-Vi: Event logged \[IO_PAGE_FAULT|IO_PAGE_FAULT (?:device|domain)=|DMAR: \[DMA (?:Read|Write)[^\]]{0,40}\] .{0,20}[Rr]equest device"
        r"|DMAR: DRHD: handling fault status",
        ("IO_PAGE_FAULT", "DMAR: [DMA", "DMAR: DRHD: handling"),
        (
            "nvidia 0000:41:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0035 address=0xf1000000 flags=0x0030]",
            "DMAR: [DMA Write NO_PASID] Request device [41:00.0] fault addr 0xd0000000 [fault reason 0x05] PTE Write access is "
            "not set",
        ),
        not_examples=("IO_PAGE_FAULT counters were reset",),
    ),
    Pattern(
        "kernel.acs_redirect",
        r"ACSCtl:.{0,40}ReqRedir\+",
        ("ACSCtl:",),
        ("ACSCtl: SrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-",),
        not_examples=("ACSCtl: SrcValid- TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-",),
    ),
    Pattern(
        "kernel.iommu_on",
        r"Missing \"iommu=pt\" from kernel command line|DMAR: IOMMU enabled|AMD-Vi: Lazy IO/TLB flushing enabled",
        ('Missing "iommu=pt"', "DMAR: IOMMU enabled", "AMD-Vi: Lazy"),
        (
            'node:9:9 [0] /rccl/src/init.cc:283 NCCL WARN Missing "iommu=pt" from kernel command line which can lead to system '
            "instablity or hang!",
        ),
    ),
    Pattern(
        "kernel.p2p_wrong_data",
        r"Verification error @ element \d+: val",
        ("Verification error @ element",),
        ("Verification error @ element 0: val = nan, ref = 0.000000",),
    ),
    Pattern(
        "kernel.machine_check",
        r"mce: \[Hardware Error\]|Machine [Cc]heck(?: Exception| events logged)|EDAC \w{1,12}: \d{1,9} UE ",
        ("[Hardware Error]", "Machine check", "Machine Check", "EDAC "),
        (
            "mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 5: be00000000800400",
            "EDAC MC0: 1 UE memory read error on CPU_SrcID#0",
        ),
        not_examples=("EDAC MC: Ver: 3.0.0",),
    ),
)

_MEMORY = (
    Pattern(
        "kernel.oom_kill",
        r"Killed process (?P<pid>\d+),? \(?(?P<name>[^),\s]{1,40})\)?",
        ("Killed process ",),
        (
            "Out of memory: Killed process 4242 (python) total-vm:21000000kB, anon-rss:120000000kB",
            "Memory cgroup out of memory: Killed process 9 (pt_main_thread)",
        ),
        not_examples=("Killed process group",),
    ),
)

PATTERNS = (*_XID, *_DEVICE, *_BUS, *_MEMORY)
