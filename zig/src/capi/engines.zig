//! Which device an open index reads from, and the engine that is compiled for it. Indexes that are searched together share
//! one: the last that is closed ends it.
const std = @import("std");
const io = @import("io");
const search = @import("search");
const build_options = @import("build_options");
const common = @import("common.zig");
const fail = common.fail;
const report = common.report;

// ---- devices ----
//
// velo_device_info of velo.h: the device, and why it was chosen.

pub const DeviceInfo = extern struct {
    struct_size: u32 = @sizeOf(DeviceInfo),
    io: i32 = 0,
    direct: i32 = 0,
    uring_errno: i32 = 0,
    direct_errno: i32 = 0,
    queue_depth: u32 = 0,
    name: [32]u8 = @splat(0),
    reason: [256]u8 = @splat(0),
    advice: [256]u8 = @splat(0),
};

/// Null where the probe has no say: the simulated device is chosen by its library.
fn wanted_device(asked: common.Io) ?io.probe.Wanted {
    return switch (asked) {
        .auto => .auto,
        .uring => .uring,
        .threads => .threads,
        .simulated => null,
    };
}

fn info_of(found: *const io.Report) DeviceInfo {
    var info: DeviceInfo = .{
        .io = @intFromEnum(if (found.kind == .uring) common.Io.uring else .threads),
        .direct = @intFromBool(found.direct),
        .uring_errno = found.uring_errno,
        .direct_errno = found.direct_errno,
        .queue_depth = found.queue_depth,
    };
    common.put_text(&info.name, found.name());
    common.put_text(&info.reason, found.reason.slice());
    common.put_text(&info.advice, found.advice.slice());
    return info;
}

pub fn simulated(queue_depth: u32) DeviceInfo {
    var info: DeviceInfo = .{ .io = @intFromEnum(common.Io.simulated), .direct = 0, .queue_depth = queue_depth };
    common.put_text(&info.name, "simulated");
    common.put_text(&info.reason, "This library was built for tests, with the simulated device.");
    return info;
}

export fn velo_device_probe(folder: ?[*:0]const u8, device: i32, info_out: ?*DeviceInfo) i32 {
    const path = folder orelse return common.null_argument("folder");
    const out = info_out orelse return common.null_argument("info_out");
    const asked = (if (std.enums.fromInt(common.Io, device)) |one| wanted_device(one) else null) orelse return fail(.invalid_argument, .{ .argument = "io" }, "io {d} cannot be probed", .{device});
    const found = io.probe.probe_folder(std.mem.span(path), asked, search.engine.queue_depth_default);
    const info = info_of(&found);
    common.write_versioned(DeviceInfo, out, &info);
    return common.ok;
}

// ---- engines ----

pub const Running = union(enum) {
    uring: *search.Engine(io.Uring),
    threads: *search.Engine(io.Threads),
    simulated: if (build_options.simulated) *search.Engine(@import("sim").Device) else noreturn,

    pub fn memory_bytes(self: Running) u64 {
        return switch (self) {
            inline else => |engine| engine.memory_bytes(),
        };
    }

    pub fn holds_pages(self: Running) bool {
        return switch (self) {
            inline else => |engine| engine.room.holds_pages,
        };
    }

    pub fn attach(self: Running, shared: *const search.Shared, files: [2]?std.posix.fd_t) error{ OutOfMemory, TooLarge }!*search.Segment {
        return switch (self) {
            inline else => |engine| engine.attach(shared, files),
        };
    }

    pub fn detach(self: Running, segment: *search.Segment) void {
        switch (self) {
            inline else => |engine| engine.detach(segment),
        }
    }

    pub fn answer(self: Running, job: *search.Job) bool {
        return switch (self) {
            inline else => |engine| engine.answer(job),
        };
    }

    pub fn submit(self: Running, job: *search.Job) bool {
        return switch (self) {
            inline else => |engine| engine.submit(job),
        };
    }
};

/// The engine, the device it reads from, and how many indexes it searches.
pub const Workers = struct {
    engine: Running,
    device: DeviceInfo,
    threads: u32,
    queries_in_flight: u32,
    users: std.atomic.Value(u32) = .init(1),

    pub fn share(self: *Workers) *Workers {
        _ = self.users.fetchAdd(1, .acq_rel);
        return self;
    }

    pub fn release(self: *Workers) void {
        if (self.users.fetchSub(1, .acq_rel) > 1) return;
        switch (self.engine) {
            inline else => |engine| engine.deinit(),
        }
        common.allocator.destroy(self);
    }

    /// The share of one of those that use it.
    pub fn memory_bytes(self: *const Workers) u64 {
        return self.engine.memory_bytes() / @max(1, self.users.load(.acquire));
    }
};

const Start = struct { engine: Running, device: DeviceInfo };

/// Starts the workers over the best device that may be had, or over the one that was asked for.
pub fn start(shared: *const search.Shared, asked: common.Io, direct: bool, pages: io.Pages, options: search.EngineOptions) common.Failure!*Workers {
    const workers = try common.allocator.create(Workers);
    errdefer common.allocator.destroy(workers);
    const began = try begin(shared, asked, direct, pages, options);
    workers.* = .{ .engine = began.engine, .device = began.device, .threads = options.threads, .queries_in_flight = options.queries_in_flight };
    return workers;
}

fn begin(shared: *const search.Shared, asked: common.Io, direct: bool, pages: io.Pages, options: search.EngineOptions) common.Failure!Start {
    if (build_options.simulated) {
        if (asked == .auto or asked == .simulated)
            return .{ .engine = .{ .simulated = try init(@import("sim").Device, shared, options) }, .device = simulated(options.queue_depth) };
    }
    const wanted = wanted_device(asked) orelse return report(.invalid_argument, .{ .argument = "io" }, "the simulated device is only in libvelo_sim", .{});
    const choice = io.probe.choose(pages.fd, pages.direct, pages.direct_errno, direct, wanted, options.queue_depth);
    if (choice.refused(wanted)) return report(.permission, .{ .argument = "io" }, "{s}", .{choice.reason.slice()});
    if (choice.kind != .uring) return .{ .engine = .{ .threads = try init(io.Threads, shared, options) }, .device = info_of(&choice) };
    const engine = search.Engine(io.Uring).init(common.allocator, shared, options) catch |err| {
        // The probe's small ring was allowed, but not these: locked memory or descriptors ran out.
        if (wanted == .uring or err == error.OutOfMemory) return report_engine(err);
        const second = io.probe.choose(pages.fd, pages.direct, pages.direct_errno, direct, .threads, options.queue_depth);
        var info = info_of(&second);
        common.put_text(&info.reason, "io_uring works, but the system refused rings of the size asked for, so threads with pread are used.");
        common.put_text(&info.advice, "Raise the limit of locked memory (ulimit -l), or ask for fewer threads or a smaller queue_depth.");
        return .{ .engine = .{ .threads = try init(io.Threads, shared, options) }, .device = info };
    };
    return .{ .engine = .{ .uring = engine }, .device = info_of(&choice) };
}

fn init(comptime Device: type, shared: *const search.Shared, options: search.EngineOptions) error{Reported}!*search.Engine(Device) {
    return search.Engine(Device).init(common.allocator, shared, options) catch |err| report_engine(err);
}

fn report_engine(err: anyerror) error{Reported} {
    return switch (err) {
        error.ThreadFailed => report(.io, .{}, "cannot start the search workers: the system gave no thread (limits of processes, ulimit -u, and of address space, ulimit -v)", .{}),
        else => report(.out_of_memory, .{}, "cannot start the search workers: {t}", .{err}),
    };
}
