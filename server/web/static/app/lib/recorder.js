// Records the microphone as WAV (16 kHz, one channel), a format that every server decodes.
const RATE = 16000;
const CHUNK_MS = 250;

/** Whether the browser has a microphone for this page: only over HTTPS or on localhost. */
export const canRecord = () => "mediaDevices" in navigator && "MediaRecorder" in window;

/**
 * Start to record. Rejects if the user or the browser denies it.
 * @returns {Promise<() => Promise<File>>} ends the recording and returns it
 */
export async function record() {
  const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
  const release = () => stream.getTracks().forEach((track) => track.stop());
  /** @type {MediaRecorder} */
  let recorder;
  try {
    recorder = new MediaRecorder(stream);
  } catch (error) {
    release();
    throw error;
  }
  /** @type {Blob[]} */
  const chunks = [];
  const begun = new Promise((resolve) => {
    recorder.ondataavailable = ({ data }) => {
      if (data.size) resolve(chunks.push(data));
    };
  });
  const ended = new Promise((resolve) => (recorder.onstop = resolve));
  recorder.start(CHUNK_MS);
  return async () => {
    await Promise.race([begun, ended]); // an empty recording cannot be decoded; the device may be gone
    if (recorder.state !== "inactive") recorder.stop();
    await ended;
    release();
    const encoded = await new Blob(chunks).arrayBuffer();
    const audio = await new OfflineAudioContext(1, 1, RATE).decodeAudioData(encoded); // resampled
    return new File([wav(audio.getChannelData(0))], "recording.wav", { type: "audio/wav" });
  };
}

/** @param {Float32Array} samples @returns {ArrayBuffer} 16-bit PCM */
function wav(samples) {
  const view = new DataView(new ArrayBuffer(44 + 2 * samples.length));
  const size = 2 * samples.length;
  /** @type {[at: number, text: string][]} */
  const names = [[0, "RIFF"], [8, "WAVEfmt "], [36, "data"]];
  for (const [at, text] of names) [...text].forEach((letter, i) => view.setUint8(at + i, letter.charCodeAt(0)));
  /** @type {[at: number, value: number][]} */
  const words = [[4, 36 + size], [16, 16], [24, RATE], [28, 2 * RATE], [40, size]];
  for (const [at, value] of words) view.setUint32(at, value, true);
  /** @type {[at: number, value: number][]} */
  const shorts = [[20, 1], [22, 1], [32, 2], [34, 16]]; // PCM, channels, bytes and bits of a sample
  for (const [at, value] of shorts) view.setUint16(at, value, true);
  samples.forEach((sample, i) => view.setInt16(44 + 2 * i, 32767 * Math.max(-1, Math.min(1, sample)), true));
  return view.buffer;
}
