//! Builds libvelo.so, its twin for tests, and the tests. The `rooms` table below is the architecture: one Zig module
//! per room, so an import that the table does not list does not compile.
const std = @import("std");

const Room = struct { name: []const u8, imports: []const []const u8 };

/// Bottom to top; a room may import only what its line lists (docs/ARCHITECTURE.md explains each arrow).
const rooms = [_]Room{
    .{ .name = "base", .imports = &.{} },
    .{ .name = "layout", .imports = &.{"base"} },
    .{ .name = "quant", .imports = &.{"base"} },
    .{ .name = "io", .imports = &.{"base"} },
    .{ .name = "cache", .imports = &.{"base"} },
    .{ .name = "filter", .imports = &.{"base"} },
    .{ .name = "graph", .imports = &.{ "base", "quant" } },
    .{ .name = "gpu", .imports = &.{ "base", "quant", "graph" } },
    .{ .name = "index", .imports = &.{ "base", "layout", "quant", "graph" } },
    .{ .name = "live", .imports = &.{ "base", "layout", "quant", "index" } },
    .{ .name = "search", .imports = &.{ "base", "layout", "quant", "io", "cache", "filter", "graph", "index" } },
    .{ .name = "offload", .imports = &.{ "base", "layout", "quant", "gpu", "search" } },
    .{ .name = "sim", .imports = &.{ "base", "layout", "io", "cache", "filter", "index", "live", "search", "gpu", "offload" } },
    .{ .name = "capi", .imports = &.{ "base", "io", "filter", "index", "live", "search", "gpu", "offload" } },
};

/// One object of the same kernels per CPU level, chosen once at load (zig/src/base/cpu.zig).
const Level = struct { name: []const u8, cpu: []const u8 };
const levels_x86_64 = [_]Level{
    .{ .name = "base", .cpu = "x86_64" },
    .{ .name = "v3", .cpu = "x86_64_v3" },
    .{ .name = "v4", .cpu = "x86_64_v4+avx512vnni+avx512vpopcntdq+avx512bitalg+avx512vbmi+avx512vbmi2" },
};
const levels_aarch64 = [_]Level{
    .{ .name = "base", .cpu = "generic" },
    .{ .name = "dotprod", .cpu = "generic+dotprod" },
};

const Builder = struct {
    b: *std.Build,
    target: std.Build.ResolvedTarget,
    optimize: std.builtin.OptimizeMode,
    strip: bool,
    sanitize_thread: bool,
    liburing: []const u8,
    kernel_objects: []const *std.Build.Step.Compile,
    /// The kernels of GPUs, as text.
    ptx: std.Build.LazyPath,

    /// A fresh set of all rooms (one per artifact, so that ThreadSanitizer and the simulated build stay apart).
    fn modules(self: Builder) std.StringHashMap(*std.Build.Module) {
        var map = std.StringHashMap(*std.Build.Module).init(self.b.allocator);
        for (rooms) |room| {
            const m = self.b.createModule(.{
                .root_source_file = self.b.path(self.b.fmt("zig/src/{s}/{s}.zig", .{ room.name, room.name })),
                .target = self.target,
                .optimize = self.optimize,
                .link_libc = true,
                .pic = true,
                .strip = self.strip,
                .sanitize_c = .off,
                .sanitize_thread = self.sanitize_thread,
                .omit_frame_pointer = self.optimize != .Debug,
            });
            key_to_tree(self.b, m);
            for (room.imports) |name| m.addImport(name, map.get(name).?);
            map.put(room.name, m) catch @panic("OOM");
        }
        for (self.kernel_objects) |object| map.get("base").?.addObject(object);
        map.get("gpu").?.addAnonymousImport("kernels.ptx", .{ .root_source_file = self.ptx });
        self.add_liburing(map.get("io").?);
        return map;
    }

    /// The distribution's static liburing and only its own headers: the host's glibc headers clash with zig's.
    fn add_liburing(self: Builder, m: *std.Build.Module) void {
        const b = self.b;
        const headers = b.addWriteFiles();
        const include = self.liburing_include();
        _ = headers.addCopyFile(.{ .cwd_relative = b.fmt("{s}/liburing.h", .{include}) }, "liburing.h");
        _ = headers.addCopyDirectory(.{ .cwd_relative = b.fmt("{s}/liburing", .{include}) }, "liburing", .{});
        m.addIncludePath(headers.getDirectory());
        m.addCSourceFile(.{
            .file = b.path("zig/src/io/uring_shim.c"),
            .flags = &.{ "-std=gnu11", "-D_GNU_SOURCE", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-unused-parameter" },
        });
        m.addObjectFile(.{ .cwd_relative = self.liburing });
    }

    fn liburing_include(self: Builder) []const u8 {
        const b = self.b;
        var folder = std.fs.path.dirname(self.liburing);
        while (folder) |path| : (folder = std.fs.path.dirname(path)) {
            const include = b.fmt("{s}/include", .{std.mem.trimRight(u8, path, "/")});
            if (exists(b.fmt("{s}/liburing.h", .{include}))) return include;
        }
        std.process.fatal("liburing.h not found beside {s}: install liburing-dev (Debian, Ubuntu) or liburing-devel (Fedora)", .{self.liburing});
    }
};

/// Makes the tree's path a part of what the compiler's cache is asked for. The cache checks imported files by the absolute
/// paths that they were first compiled from, so in a copy of the tree that took `.zig-cache` along it would serve what the
/// original's files say. The macro only stands in the key; nothing uses it.
fn key_to_tree(b: *std.Build, m: *std.Build.Module) void {
    m.addCMacro("VELO_TREE", b.pathFromRoot("."));
}

fn exists(path: []const u8) bool {
    std.fs.cwd().access(path, .{}) catch return false;
    return true;
}

fn find_liburing(b: *std.Build, arch: std.Target.Cpu.Arch) []const u8 {
    const wanted = b.option([]const u8, "liburing", "path of liburing.a (default: auto, the distribution's)") orelse "auto";
    if (!std.mem.eql(u8, wanted, "auto")) return wanted;
    const folders = [_][]const u8{
        b.fmt("/usr/lib/{s}-linux-gnu", .{@tagName(arch)}),
        if (arch == @import("builtin").cpu.arch) "/usr/lib64" else "/nonexistent",
        if (arch == @import("builtin").cpu.arch) "/usr/lib" else "/nonexistent",
    };
    for (folders) |folder| {
        const path = b.fmt("{s}/liburing.a", .{folder});
        if (exists(path)) return path;
    }
    std.process.fatal("liburing.a for {s} not found: apt-get install liburing-dev (dnf install liburing-devel), or -Dliburing=PATH", .{@tagName(arch)});
}

fn kernel_objects(b: *std.Build, target: std.Build.ResolvedTarget) []const *std.Build.Step.Compile {
    const arch = target.result.cpu.arch;
    const levels: []const Level = switch (arch) {
        .x86_64 => &levels_x86_64,
        .aarch64 => &levels_aarch64,
        else => std.process.fatal("velo builds for x86_64 and aarch64 Linux, not {s}", .{@tagName(arch)}),
    };
    const objects = b.allocator.alloc(*std.Build.Step.Compile, levels.len) catch @panic("OOM");
    for (levels, objects) |level, *object| {
        const query = std.Build.parseTargetQuery(.{
            .arch_os_abi = b.fmt("{s}-linux-gnu.2.28", .{@tagName(arch)}),
            .cpu_features = level.cpu,
        }) catch |err| std.process.fatal("cpu level {s}: {t}", .{ level.name, err });
        const options = b.addOptions();
        options.addOption([]const u8, "level", level.name);
        const m = b.createModule(.{
            .root_source_file = b.path("zig/src/quant/kernels/kernels.zig"),
            .target = b.resolveTargetQuery(query),
            .optimize = .ReleaseFast, // also in Debug builds: a kernel without optimisation tests nothing that ships
            .pic = true,
            .strip = true,
            .link_libc = true,
        });
        m.addOptions("options", options);
        key_to_tree(b, m);
        object.* = b.addObject(.{ .name = b.fmt("kernels_{s}", .{level.name}), .root_module = m });
    }
    return objects;
}

/// Kernels of GPUs for sm_80. The driver compiles them for its card, so a build needs no toolkit and takes any host.
fn gpu_kernels(b: *std.Build) std.Build.LazyPath {
    const query = std.Build.parseTargetQuery(.{ .arch_os_abi = "nvptx64-cuda", .cpu_features = "sm_80" }) catch |err| std.process.fatal("nvptx64: {t}", .{err});
    const m = b.createModule(.{
        .root_source_file = b.path("zig/src/gpu/ptx.zig"),
        .target = b.resolveTargetQuery(query),
        .optimize = .ReleaseSmall, // without checks, which could only trap; fewer registers and instructions than ReleaseFast
        .strip = true,
    });
    key_to_tree(b, m);
    return b.addObject(.{ .name = "kernels_gpu", .root_module = m }).getEmittedAsm();
}

pub fn build(b: *std.Build) void {
    const target = b.standardTargetOptions(.{ .default_target = .{
        .cpu_model = .baseline,
        .os_tag = .linux,
        .abi = .gnu,
        .glibc_version = .{ .major = 2, .minor = 28, .patch = 0 },
    } });
    const optimize = b.standardOptimizeOption(.{});
    const filters = b.args orelse &.{};
    const long = b.option(bool, "long", "Tests of every room also under ThreadSanitizer, and all simulated worlds and runs under faults (zig/src/sim/worlds.zig)") orelse false;
    var builder = Builder{
        .b = b,
        .target = target,
        .optimize = optimize,
        .strip = b.option(bool, "strip", "leave symbols out (default: unless Debug); perf and callgrind need them") orelse (optimize != .Debug),
        .sanitize_thread = false,
        .liburing = find_liburing(b, target.result.cpu.arch),
        .kernel_objects = kernel_objects(b, target),
        .ptx = gpu_kernels(b),
    };
    b.step("ptx", "Install the kernels of GPUs, as the library embeds them").dependOn(&b.addInstallFile(builder.ptx, "kernels.ptx").step);

    // The shipped library, and a twin behind the same ABI for tests, with the simulated device.
    for ([_]struct { name: []const u8, simulated: bool }{
        .{ .name = "velo", .simulated = false },
        .{ .name = "velo_sim", .simulated = true },
    }) |kind| {
        const map = builder.modules();
        const root = map.get("capi").?;
        const options = b.addOptions();
        options.addOption(bool, "simulated", kind.simulated);
        root.addOptions("build_options", options);
        if (kind.simulated) root.addImport("sim", map.get("sim").?);
        // Through LLVM also in Debug: the own backend of this Zig gets thread-local variables of a shared library wrong.
        const library = b.addLibrary(.{ .name = kind.name, .linkage = .dynamic, .root_module = root, .use_llvm = true });
        library.linker_allow_shlib_undefined = false;
        library.setVersionScript(b.path("zig/libvelo.map"));
        const install = b.addInstallArtifact(library, .{});
        b.step(b.fmt("lib{s}", .{kind.name}), "Build and install this library").dependOn(&install.step);
        b.getInstallStep().dependOn(&install.step);
    }

    // `zig build test` runs every room's tests, `zig build test-quant` one room's; `-- NAME` filters.
    const test_all = b.step("test", "Run the tests of every room");
    const map = builder.modules();
    for (rooms) |room| add_test(b, test_all, b.fmt("test-{s}", .{room.name}), room.name, map.get(room.name).?, filters, .{ .long = long });

    // Simulated worlds as the library ships, several times as fast as in Debug (zig/src/sim/worlds.zig). Their compilation takes
    // longer than the worlds of a short run, which test-sim makes.
    var shipped = builder;
    shipped.optimize = .ReleaseSafe; // as the library ships
    const worlds: []const []const u8 = if (filters.len > 0) filters else &.{ "world", "thousands" };
    add_test(b, if (long) test_all else null, "test-worlds", "sim", shipped.modules().get("sim").?, worlds, .{ .long = long });

    // ThreadSanitizer over tests in which threads meet; these have the word in their names (tests/native/test_zig_test_names.py).
    // A short run has the rooms whose locks and atomics every search and every write passes.
    builder.sanitize_thread = true;
    const tsan_all = b.step("tsan", "Run the tests in which threads meet under ThreadSanitizer");
    const tsan_map = builder.modules();
    for ([_]struct { name: []const u8, short: bool, all_tests: bool }{
        .{ .name = "cache", .short = true, .all_tests = false },
        .{ .name = "filter", .short = false, .all_tests = false },
        .{ .name = "graph", .short = false, .all_tests = false },
        .{ .name = "live", .short = true, .all_tests = false },
        .{ .name = "capi", .short = true, .all_tests = false },
        .{ .name = "io", .short = true, .all_tests = true },
        .{ .name = "search", .short = false, .all_tests = true },
        .{ .name = "sim", .short = true, .all_tests = long },
    }) |room| {
        const names: []const []const u8 = if (filters.len > 0) filters else if (room.all_tests) &.{} else &.{"threads"};
        const all = if (long or room.short) tsan_all else null;
        add_test(b, all, b.fmt("tsan-{s}", .{room.name}), room.name, tsan_map.get(room.name).?, names, .{ .long = long, .tsan = true });
    }
}

const How = struct { long: bool, tsan: bool = false };

fn add_test(b: *std.Build, all: ?*std.Build.Step, step_name: []const u8, room: []const u8, module: *std.Build.Module, filters: []const []const u8, how: How) void {
    if (std.mem.eql(u8, room, "capi")) {
        const options = b.addOptions();
        options.addOption(bool, "simulated", false);
        module.addOptions("build_options", options);
    }
    // Zig's own backend, for Debug on x86-64, compiles in a tenth of the time. Its code is slower: rooms whose tests compute for
    // long take less time through LLVM.
    const computes = for ([_][]const u8{ "quant", "graph", "gpu", "index", "sim" }) |name| {
        if (std.mem.eql(u8, room, name)) break true;
    } else false;
    const use_llvm = computes or how.tsan or module.optimize.? != .Debug or module.resolved_target.?.result.cpu.arch != .x86_64;
    const t = b.addTest(.{ .name = step_name, .root_module = module, .filters = filters, .use_llvm = use_llvm });
    const run = b.addRunArtifact(t);
    if (how.long) run.setEnvironmentVariable("VELO_LONG", "1");
    if (how.tsan) run.setEnvironmentVariable("TSAN_OPTIONS", "halt_on_error=1");
    const step = b.step(step_name, b.fmt("Run {s}: tests of the room {s}", .{ step_name, room }));
    step.dependOn(&run.step);
    if (all) |every| every.dependOn(&run.step);
    const install = b.addInstallArtifact(t, .{});
    b.step(b.fmt("install-{s}", .{step_name}), "Install this test binary (for valgrind, perf)").dependOn(&install.step);
}
