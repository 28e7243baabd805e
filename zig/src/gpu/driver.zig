//! NVIDIA's driver, loaded at run time: `libcuda.so.1` belongs to the driver's installation, so libvelo links nothing of it, and
//! a process that asks for no GPU never opens it.
//!
//! `Api` is a table of the driver's functions. Callers take that table, so tests can put another in its place (fake.zig).
const std = @import("std");
const layout = @import("layout.zig");

/// CUresult: the values that are treated specially, and those that the fake driver returns.
pub const Result = enum(c_int) {
    success = 0,
    invalid_value = 1,
    out_of_memory = 2,
    not_initialized = 3,
    deinitialized = 4,
    stub_library = 34,
    device_unavailable = 46,
    no_device = 100,
    invalid_device = 101,
    invalid_image = 200,
    invalid_context = 201,
    ecc_uncorrectable = 214,
    invalid_ptx = 218,
    unsupported_ptx_version = 222,
    not_found = 500,
    not_ready = 600,
    illegal_address = 700,
    launch_out_of_resources = 701,
    launch_timeout = 702,
    context_is_destroyed = 709,
    assertion = 710,
    hardware_stack_error = 714,
    illegal_instruction = 715,
    misaligned_address = 716,
    invalid_address_space = 717,
    invalid_pc = 718,
    launch_failed = 719,
    system_driver_mismatch = 803,
    unknown = 999,
    _,

    /// The context is unusable from here on: every later call over it fails, and its memory is gone.
    pub fn is_lost(self: Result) bool {
        return switch (self) {
            .deinitialized,
            .device_unavailable,
            .invalid_context,
            .ecc_uncorrectable,
            .illegal_address,
            .launch_timeout,
            .context_is_destroyed,
            .assertion,
            .hardware_stack_error,
            .illegal_instruction,
            .misaligned_address,
            .invalid_address_space,
            .invalid_pc,
            .launch_failed,
            .unknown,
            => true,
            else => false,
        };
    }
};

pub const Error = error{
    /// `libcuda.so.1` cannot be opened, or lacks a function.
    NoDriver,
    /// The driver is older than `version_needed`.
    OldDriver,
    /// The driver works and sees no such device.
    NoDevice,
    /// The process was forked after its parent used the driver.
    Forked,
    /// Device memory, or page-locked host memory.
    DeviceMemory,
    /// The device failed: its context is unusable.
    DeviceLost,
    /// Any other failure of a call.
    DriverFailed,
};

/// The failure as a sentence, for reports.
pub const Diagnostic = struct {
    text: [400]u8 = undefined,
    len: usize = 0,
    /// Of `DeviceMemory`.
    needed_bytes: u64 = 0,
    free_bytes: u64 = 0,

    pub fn set(self: *Diagnostic, comptime format: []const u8, args: anytype) void {
        var writer: std.Io.Writer = .fixed(&self.text);
        writer.print(format, args) catch {}; // a sentence cut short still says most of it
        self.len = writer.buffered().len;
    }

    pub fn message(self: *const Diagnostic) []const u8 {
        return self.text[0..self.len];
    }
};

/// The first driver that compiles PTX 7.0, which Zig writes: CUDA 11.0 (Linux driver 450).
pub const version_needed = 11_000;
/// Kernels are compiled for sm_80.
pub const compute_needed = 80;

pub const Device = c_int;
pub const Context = *opaque {};
pub const Module = *opaque {};
pub const Function = *opaque {};
pub const Stream = *opaque {};
pub const Event = *opaque {};
/// CUdeviceptr.
pub const Address = u64;

/// CUdevice_attribute.
pub const Attribute = enum(c_int) {
    compute_major = 75,
    compute_minor = 76,
};

pub const event_blocking: c_uint = 1;
pub const stream_non_blocking: c_uint = 1;

const jit_error_log: c_int = 5;
const jit_error_log_bytes: c_int = 6;

/// The functions of the driver by their names in cuda.h.
pub const Api = struct {
    cuInit: *const fn (c_uint) callconv(.c) Result,
    cuDriverGetVersion: *const fn (*c_int) callconv(.c) Result,
    cuGetErrorName: *const fn (Result, *?[*:0]const u8) callconv(.c) Result,
    cuGetErrorString: *const fn (Result, *?[*:0]const u8) callconv(.c) Result,
    cuDeviceGetCount: *const fn (*c_int) callconv(.c) Result,
    cuDeviceGet: *const fn (*Device, c_int) callconv(.c) Result,
    cuDeviceGetName: *const fn ([*]u8, c_int, Device) callconv(.c) Result,
    cuDeviceGetAttribute: *const fn (*c_int, Attribute, Device) callconv(.c) Result,
    cuDeviceTotalMem: *const fn (*usize, Device) callconv(.c) Result,
    cuDevicePrimaryCtxRetain: *const fn (*?Context, Device) callconv(.c) Result,
    cuDevicePrimaryCtxRelease: *const fn (Device) callconv(.c) Result,
    cuCtxPushCurrent: *const fn (Context) callconv(.c) Result,
    cuCtxPopCurrent: *const fn (*?Context) callconv(.c) Result,
    cuMemGetInfo: *const fn (*usize, *usize) callconv(.c) Result,
    cuMemAlloc: *const fn (*Address, usize) callconv(.c) Result,
    cuMemFree: *const fn (Address) callconv(.c) Result,
    cuMemHostAlloc: *const fn (*?*anyopaque, usize, c_uint) callconv(.c) Result,
    cuMemFreeHost: *const fn (?*anyopaque) callconv(.c) Result,
    cuMemcpyHtoDAsync: *const fn (Address, *const anyopaque, usize, ?Stream) callconv(.c) Result,
    cuMemcpyDtoHAsync: *const fn (*anyopaque, Address, usize, ?Stream) callconv(.c) Result,
    cuStreamCreate: *const fn (*?Stream, c_uint) callconv(.c) Result,
    cuStreamDestroy: *const fn (Stream) callconv(.c) Result,
    cuStreamSynchronize: *const fn (?Stream) callconv(.c) Result,
    cuEventCreate: *const fn (*?Event, c_uint) callconv(.c) Result,
    cuEventDestroy: *const fn (Event) callconv(.c) Result,
    cuEventRecord: *const fn (Event, ?Stream) callconv(.c) Result,
    cuEventSynchronize: *const fn (Event) callconv(.c) Result,
    cuEventElapsedTime: *const fn (*f32, Event, Event) callconv(.c) Result,
    cuModuleLoadDataEx: *const fn (*?Module, *const anyopaque, c_uint, ?[*]c_int, ?[*]?*anyopaque) callconv(.c) Result,
    cuModuleUnload: *const fn (Module) callconv(.c) Result,
    cuModuleGetFunction: *const fn (*?Function, Module, [*:0]const u8) callconv(.c) Result,
    cuLaunchKernel: *const fn (Function, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, ?Stream, ?[*]?*anyopaque, ?[*]?*anyopaque) callconv(.c) Result,

    /// Symbols whose 64-bit form has another name than the function in cuda.h, which are macros there.
    const second = [_][]const u8{
        "cuDeviceTotalMem",  "cuDevicePrimaryCtxRelease", "cuMemGetInfo",    "cuMemAlloc",     "cuMemFree",
        "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync",         "cuStreamDestroy", "cuEventDestroy", "cuCtxPushCurrent",
        "cuCtxPopCurrent",
    };

    fn symbol_of(comptime name: [:0]const u8) [:0]const u8 {
        @setEvalBranchQuota(20_000);
        for (second) |one| if (std.mem.eql(u8, one, name)) return name ++ "_v2";
        return name;
    }

    /// From the driver's library. After a failure `name` is the missing symbol.
    fn load(library: *std.DynLib, name: *[]const u8) error{NoDriver}!Api {
        @setEvalBranchQuota(20_000);
        var api: Api = undefined;
        inline for (std.meta.fields(Api)) |field| {
            name.* = comptime symbol_of(field.name);
            @field(api, field.name) = library.lookup(field.type, comptime symbol_of(field.name)) orelse return error.NoDriver;
        }
        return api;
    }
};

// ---- the driver of this process ----

pub const library_name = "libcuda.so.1";

/// Opened once in a process and never closed: the library starts threads of its own.
var loaded: ?Api = null;

/// A table of functions that works in this process.
pub const Driver = struct {
    api: *const Api,
    version: u32,

    /// The installed driver. Calls come one at a time, and from no fork of a process that has made one (capi/gpu.zig).
    pub fn open(diagnostic: *Diagnostic) Error!Driver {
        if (loaded == null) {
            var library = std.DynLib.open(library_name) catch {
                diagnostic.set("{s} was not found: install NVIDIA's driver, or leave device out", .{library_name});
                return error.NoDriver;
            };
            var name: []const u8 = "";
            loaded = Api.load(&library, &name) catch |err| {
                diagnostic.set("{s} has no {s}: it is older than CUDA {d}.{d}", .{ library_name, name, version_needed / 1000, version_needed % 1000 / 10 });
                library.close();
                return err;
            };
        }
        return .init(&loaded.?, diagnostic);
    }

    /// Initializes the driver behind a table and checks its version.
    pub fn init(api: *const Api, diagnostic: *Diagnostic) Error!Driver {
        var self: Driver = .{ .api = api, .version = 0 };
        var version: c_int = 0;
        // Answers without cuInit, which an old driver may refuse for another reason.
        try self.check("cuDriverGetVersion", api.cuDriverGetVersion(&version), diagnostic);
        self.version = @intCast(@max(0, version));
        if (self.version < version_needed) {
            diagnostic.set("the GPU driver is for CUDA {d}.{d}; velo needs {d}.{d} (Linux driver 450) or later", .{
                self.version / 1000, self.version % 1000 / 10, version_needed / 1000, version_needed % 1000 / 10,
            });
            return error.OldDriver;
        }
        try self.check("cuInit", api.cuInit(0), diagnostic);
        return self;
    }

    pub fn device_count(self: Driver, diagnostic: *Diagnostic) Error!u32 {
        var count: c_int = 0;
        try self.check("cuDeviceGetCount", self.api.cuDeviceGetCount(&count), diagnostic);
        return @intCast(@max(0, count));
    }

    /// Makes an error and a sentence of a result.
    pub fn check(self: Driver, call: []const u8, result: Result, diagnostic: *Diagnostic) Error!void {
        if (result == .success) return;
        const name = self.text_of(result, self.api.cuGetErrorName);
        const text = self.text_of(result, self.api.cuGetErrorString);
        switch (result) {
            .no_device => diagnostic.set("the driver sees no GPU ({s}); CUDA_VISIBLE_DEVICES may hide it", .{name}),
            .system_driver_mismatch, .stub_library => diagnostic.set("{s} is not of the running driver: {s} ({s})", .{ library_name, text, name }),
            else => diagnostic.set("{s}: {s} ({s})", .{ call, text, name }),
        }
        if (result.is_lost()) return error.DeviceLost;
        return switch (result) {
            .out_of_memory => error.DeviceMemory,
            .no_device, .invalid_device => error.NoDevice,
            .stub_library => error.NoDriver,
            .unsupported_ptx_version => error.OldDriver,
            .not_initialized => error.Forked,
            else => error.DriverFailed,
        };
    }

    fn text_of(_: Driver, result: Result, ask: *const fn (Result, *?[*:0]const u8) callconv(.c) Result) []const u8 {
        var text: ?[*:0]const u8 = null;
        if (ask(result, &text) == .success) if (text) |one| return std.mem.span(one);
        return "an error unknown to the driver";
    }
};

// ---- one device ----

/// Facts of a device that need no context.
pub const Facts = struct {
    ordinal: u32,
    name_buffer: [96]u8 = @splat(0),
    total_bytes: u64,
    compute: u32,

    pub fn name(self: *const Facts) []const u8 {
        return std.mem.sliceTo(&self.name_buffer, 0);
    }
};

/// An open device: its primary context, which all users of a process share.
pub const Card = struct {
    driver: Driver,
    device: Device,
    context: Context,
    facts: Facts,

    pub fn open(driver: Driver, ordinal: u32, diagnostic: *Diagnostic) Error!Card {
        var self: Card = .{ .driver = driver, .device = 0, .context = undefined, .facts = try facts_of(driver, ordinal, diagnostic) };
        const api = driver.api;
        if (self.facts.compute < compute_needed) {
            diagnostic.set("{s} has compute capability {d}.{d}; velo needs {d}.{d} or later", .{ self.facts.name(), self.facts.compute / 10, self.facts.compute % 10, compute_needed / 10, compute_needed % 10 });
            return error.NoDevice;
        }
        try driver.check("cuDeviceGet", api.cuDeviceGet(&self.device, @intCast(ordinal)), diagnostic);
        var context: ?Context = null;
        try driver.check("cuDevicePrimaryCtxRetain", api.cuDevicePrimaryCtxRetain(&context, self.device), diagnostic);
        self.context = context.?;
        return self;
    }

    pub fn close(self: *Card) void {
        _ = self.driver.api.cuDevicePrimaryCtxRelease(self.device); // a lost device refuses it
    }

    /// Makes it the device of this thread, which the calls below need, until `leave` restores the former one.
    pub fn enter(self: *const Card, diagnostic: *Diagnostic) Error!void {
        try self.driver.check("cuCtxPushCurrent", self.driver.api.cuCtxPushCurrent(self.context), diagnostic);
    }

    pub fn leave(self: *const Card) void {
        var popped: ?Context = null;
        _ = self.driver.api.cuCtxPopCurrent(&popped);
    }

    pub const Memory = struct { free: u64, total: u64 };

    pub fn memory(self: *const Card, diagnostic: *Diagnostic) Error!Memory {
        var left: usize = 0;
        var total: usize = 0;
        try self.driver.check("cuMemGetInfo", self.driver.api.cuMemGetInfo(&left, &total), diagnostic);
        return .{ .free = left, .total = total };
    }

    /// Checks that codes and links of a segment or build have room.
    pub fn require(self: *const Card, bytes: u64, owner: []const u8, diagnostic: *Diagnostic) Error!void {
        const left = try self.memory(diagnostic);
        if (bytes <= left.free) return;
        diagnostic.needed_bytes = bytes;
        diagnostic.free_bytes = left.free;
        diagnostic.set("codes and links of the {s} take {d} bytes of device memory; {s} has {d} free of {d}", .{ owner, bytes, self.facts.name(), left.free, left.total });
        return error.DeviceMemory;
    }

    /// Device memory; an error for lack of it names the needed and the free bytes.
    pub fn alloc(self: *const Card, bytes: u64, diagnostic: *Diagnostic) Error!Buffer {
        var address: Address = 0;
        const size = @max(1, bytes);
        const result = self.driver.api.cuMemAlloc(&address, size);
        if (result == .out_of_memory) {
            const left = self.memory(diagnostic) catch Memory{ .free = 0, .total = 0 };
            diagnostic.needed_bytes = bytes;
            diagnostic.free_bytes = left.free;
            diagnostic.set("{s} has {d} bytes free of {d}, and {d} are needed", .{ self.facts.name(), left.free, left.total, bytes });
            return error.DeviceMemory;
        }
        try self.driver.check("cuMemAlloc", result, diagnostic);
        return .{ .address = address, .bytes = bytes };
    }

    pub fn free(self: *const Card, buffer: *Buffer) void {
        if (buffer.address != 0) _ = self.driver.api.cuMemFree(buffer.address);
        buffer.* = .none;
    }

    /// Page-locked memory of the host, which copies run over without the processor.
    pub fn alloc_host(self: *const Card, bytes: usize, diagnostic: *Diagnostic) Error![]align(64) u8 {
        var address: ?*anyopaque = null;
        const portable: c_uint = 1;
        try self.driver.check("cuMemHostAlloc", self.driver.api.cuMemHostAlloc(&address, @max(1, bytes), portable), diagnostic);
        return @as([*]align(64) u8, @ptrCast(@alignCast(address.?)))[0..bytes];
    }

    pub fn free_host(self: *const Card, bytes: []align(64) u8) void {
        _ = self.driver.api.cuMemFreeHost(bytes.ptr);
    }

    pub fn upload(self: *const Card, to: Buffer, offset: u64, from: []const u8, stream: ?Stream, diagnostic: *Diagnostic) Error!void {
        if (from.len == 0) return;
        std.debug.assert(offset + from.len <= to.bytes);
        try self.driver.check("cuMemcpyHtoDAsync", self.driver.api.cuMemcpyHtoDAsync(to.address + offset, from.ptr, from.len, stream), diagnostic);
    }

    pub fn download(self: *const Card, to: []u8, from: Buffer, stream: ?Stream, diagnostic: *Diagnostic) Error!void {
        if (to.len == 0) return;
        std.debug.assert(to.len <= from.bytes);
        try self.driver.check("cuMemcpyDtoHAsync", self.driver.api.cuMemcpyDtoHAsync(to.ptr, from.address, to.len, stream), diagnostic);
    }

    pub fn create_stream(self: *const Card, diagnostic: *Diagnostic) Error!Stream {
        var stream: ?Stream = null;
        try self.driver.check("cuStreamCreate", self.driver.api.cuStreamCreate(&stream, stream_non_blocking), diagnostic);
        return stream.?;
    }

    pub fn destroy_stream(self: *const Card, stream: Stream) void {
        _ = self.driver.api.cuStreamDestroy(stream);
    }

    pub fn synchronize(self: *const Card, stream: ?Stream, diagnostic: *Diagnostic) Error!void {
        try self.driver.check("cuStreamSynchronize", self.driver.api.cuStreamSynchronize(stream), diagnostic);
    }

    /// A thread that waits for it sleeps.
    pub fn create_event(self: *const Card, diagnostic: *Diagnostic) Error!Event {
        var event: ?Event = null;
        try self.driver.check("cuEventCreate", self.driver.api.cuEventCreate(&event, event_blocking), diagnostic);
        return event.?;
    }

    pub fn destroy_event(self: *const Card, event: Event) void {
        _ = self.driver.api.cuEventDestroy(event);
    }

    pub fn record(self: *const Card, event: Event, stream: ?Stream, diagnostic: *Diagnostic) Error!void {
        try self.driver.check("cuEventRecord", self.driver.api.cuEventRecord(event, stream), diagnostic);
    }

    pub fn wait(self: *const Card, event: Event, diagnostic: *Diagnostic) Error!void {
        try self.driver.check("cuEventSynchronize", self.driver.api.cuEventSynchronize(event), diagnostic);
    }

    /// Microseconds between two events that have happened.
    pub fn elapsed_us(self: *const Card, from: Event, to: Event, diagnostic: *Diagnostic) Error!f32 {
        var ms: f32 = 0;
        try self.driver.check("cuEventElapsedTime", self.driver.api.cuEventElapsedTime(&ms, from, to), diagnostic);
        return ms * 1000;
    }

    /// Compiles PTX, which ends with a zero, for this device. An error has the log of the compiler.
    pub fn load_module(self: *const Card, ptx: [:0]const u8, diagnostic: *Diagnostic) Error!Module {
        var module: ?Module = null;
        var log: [2048]u8 = @splat(0);
        var options = [_]c_int{ jit_error_log, jit_error_log_bytes };
        var values = [_]?*anyopaque{ &log, @ptrFromInt(log.len - 1) };
        const result = self.driver.api.cuModuleLoadDataEx(&module, ptx.ptr, options.len, &options, &values);
        const text = std.mem.trim(u8, std.mem.sliceTo(&log, 0), " \n\t");
        self.driver.check("cuModuleLoadDataEx", result, diagnostic) catch |err| {
            if (text.len > 0) diagnostic.set("the driver did not compile the kernels: {s}", .{text});
            return err;
        };
        return module.?;
    }

    pub fn unload_module(self: *const Card, module: Module) void {
        _ = self.driver.api.cuModuleUnload(module);
    }

    pub fn function(self: *const Card, module: Module, name: [:0]const u8, diagnostic: *Diagnostic) Error!Function {
        var found: ?Function = null;
        try self.driver.check("cuModuleGetFunction", self.driver.api.cuModuleGetFunction(&found, module, name.ptr), diagnostic);
        return found.?;
    }

    pub const Shape = struct { blocks: u32, threads: u32, shared_bytes: u32 = 0 };

    /// `arguments` points at each argument of the kernel, which it takes before this returns.
    pub fn launch(self: *const Card, kernel: Function, shape: Shape, stream: ?Stream, arguments: []?*anyopaque, diagnostic: *Diagnostic) Error!void {
        try self.driver.check("cuLaunchKernel", self.driver.api.cuLaunchKernel(kernel, shape.blocks, 1, 1, shape.threads, 1, 1, shape.shared_bytes, stream, arguments.ptr, null), diagnostic);
    }

    /// Launches a kernel of ours: a warp for each query, in blocks of as many as shared memory of a block holds.
    pub fn launch_batch(self: *const Card, kernel: Function, index: layout.Index, batch: layout.Batch, stream: ?Stream, diagnostic: *Diagnostic) Error!void {
        var own_index = index;
        var own_batch = batch;
        var arguments = [_]?*anyopaque{ &own_index, &own_batch };
        const warps = batch.block_warps();
        try self.launch(kernel, .{
            .blocks = std.math.divCeil(u32, batch.count, warps) catch unreachable,
            .threads = layout.lanes * warps,
            .shared_bytes = warps * batch.warp_bytes(),
        }, stream, &arguments, diagnostic);
    }
};

/// Device memory.
pub const Buffer = struct {
    address: Address,
    bytes: u64,

    pub const none: Buffer = .{ .address = 0, .bytes = 0 };
};

pub fn facts_of(driver: Driver, ordinal: u32, diagnostic: *Diagnostic) Error!Facts {
    const api = driver.api;
    const count = try driver.device_count(diagnostic);
    if (ordinal >= count) {
        diagnostic.set("there is no GPU {d}: the driver sees {d}", .{ ordinal, count });
        return error.NoDevice;
    }
    var device: Device = 0;
    try driver.check("cuDeviceGet", api.cuDeviceGet(&device, @intCast(ordinal)), diagnostic);
    var facts: Facts = .{ .ordinal = ordinal, .total_bytes = 0, .compute = 0 };
    try driver.check("cuDeviceGetName", api.cuDeviceGetName(&facts.name_buffer, facts.name_buffer.len - 1, device), diagnostic);
    var total: usize = 0;
    try driver.check("cuDeviceTotalMem", api.cuDeviceTotalMem(&total, device), diagnostic);
    facts.total_bytes = total;
    facts.compute = 10 * try attribute(driver, device, .compute_major, diagnostic) + try attribute(driver, device, .compute_minor, diagnostic);
    return facts;
}

fn attribute(driver: Driver, device: Device, which: Attribute, diagnostic: *Diagnostic) Error!u32 {
    var value: c_int = 0;
    try driver.check("cuDeviceGetAttribute", driver.api.cuDeviceGetAttribute(&value, which, device), diagnostic);
    return @intCast(@max(0, value));
}

test "symbols have the names of the 64-bit ABI" {
    try std.testing.expectEqualStrings("cuMemAlloc_v2", comptime Api.symbol_of("cuMemAlloc"));
    try std.testing.expectEqualStrings("cuLaunchKernel", comptime Api.symbol_of("cuLaunchKernel"));
    for (Api.second) |name| {
        const known = for (std.meta.fieldNames(Api)) |field| {
            if (std.mem.eql(u8, field, name)) break true;
        } else false;
        try std.testing.expect(known);
    }
}

test "without a driver the error names its library" {
    var diagnostic: Diagnostic = .{};
    _ = Driver.open(&diagnostic) catch {
        try std.testing.expect(diagnostic.message().len > 0);
        return;
    };
}
